//! Active FTP through the service `ftp` (docs/ftp.md) with real clients and a real server: sources
//! are the hub's, and nothing is allowed at the ship.

use std::fs;

use crate::accelerators::{program, serve, service, wait_until_running};
use crate::clients::{check_same, ftp_server};
use crate::documents::FTP;
use crate::files::make_file;
use crate::harness::{Scratch, World, must, root, wait_for};

const SIZE: usize = 3_000_000;

fn as_the_page_says() -> (World, Scratch) {
    let programs = Scratch::new("ftp");
    let at = program("bentpipe-ftp", &programs);
    let world = World::with(|plan| {
        for settings in [&mut plan.a, &mut plan.b] {
            serve(settings, FTP, "bentpipe-ftp", &at);
        }
    });
    wait_until_running(&world.a);
    wait_until_running(&world.b);
    (world, programs)
}

#[test]
fn active_ftp_works_behind_the_hubs_address() {
    if !root() {
        return;
    }
    let (world, _programs) = as_the_page_says();
    let (_server, files) = ftp_server(&world.server, "10.2.0.2", &world.dir("ftp"));
    let file = make_file(&files.join("file"), SIZE);
    let dir = world.dir("files");
    let upload = make_file(&dir.join("upload"), SIZE / 2);
    let (out, up) = (dir.join("out"), upload.display());
    let o = out.display();
    let mut copies = 0;
    for mode in ["--ftp-port -", "--ftp-port - --disable-eprt", "--ftp-pasv"] {
        for host in ["10.2.0.2", "[fd02::2]"] {
            if mode.contains("disable") && host.starts_with('[') {
                continue; // PORT knows no such address.
            }
            let _ = fs::remove_file(&out);
            must(&world.client, &format!("curl -sSfg {mode} -o {o} ftp://{host}/file"));
            check_same(&out, &file);
            let listing = must(&world.client, &format!("curl -sSfg {mode} ftp://{host}/"));
            assert!(listing.contains("incoming"), "{listing}");
            copies += 1;
            let name = format!("incoming/copy{copies}");
            must(&world.client, &format!("curl -sSfg {mode} -T {up} ftp://{host}/{name}"));
            wait_for("the upload's end", || {
                let len = fs::metadata(files.join(&name)).map_or(0, |m| m.len());
                (len == SIZE as u64 / 2).then_some(()).ok_or(format!("{len} bytes"))
            });
            check_same(&files.join(&name), &upload);
        }
    }
    // Several files in one session, and one that is broken off.
    must(
        &world.client,
        &format!(
            "HOME={} lftp -c 'set ftp:passive-mode off; set net:max-retries 1; set net:timeout 20; \
             open 10.2.0.2; get file -o {o}.1; get file -o {o}.2; get file -o {o}.3'",
            dir.display()
        ),
    );
    for n in 1..=3 {
        check_same(&dir.join(format!("out.{n}")), &file);
    }
    must(
        &world.client,
        &format!(
            "curl -sS --ftp-port - --max-time 5 --limit-rate 1k -o {o} ftp://10.2.0.2/file; test $? = 28"
        ),
    );
    let counters =
        wait_for("thirteen transfers by active FTP", || match service(&world.b).counters {
            it if it["data"] >= 13 => Ok(it),
            it => Err(format!("{it:?}")),
        });
    assert_eq!(counters["failed"], 0, "{counters:?}");
    wait_for("the sessions' end", || match service(&world.a).counters {
        it if it["open"] == 0 => Ok(()),
        it => Err(format!("{it:?}")),
    });
    world.wait_until_no_streams();
}

/// A host asks for another's port, and a server names one of somebody else.
#[test]
fn a_session_connects_its_own_two_hosts_and_nobody_else() {
    if !root() {
        return;
    }
    use std::io::{BufRead as _, BufReader, Write as _};
    let (world, _programs) = as_the_page_says();
    let listener = world.server.run(|| std::net::TcpListener::bind("10.2.0.2:21")).unwrap();
    let data = world.server.run(|| std::net::TcpListener::bind("10.2.0.2:0")).unwrap();
    let port = data.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut said = Vec::new();
        writeln!(&stream, "220 ready\r").unwrap();
        while let Some(Ok(line)) = lines.next() {
            let reply = match line.as_str() {
                // The address is the other gateway's own.
                "PASV" => format!("227 here (192,0,2,1,{},{})", port >> 8, port & 255),
                _ => "500 no".into(),
            };
            said.push(line);
            writeln!(&stream, "{reply}\r").unwrap();
        }
        said
    });
    let waits = world.client.run(|| std::net::TcpListener::bind("10.1.0.2:0")).unwrap();
    let at = waits.local_addr().unwrap().port();
    let session = crate::tcp::connect(&world.client, "10.2.0.2:21");
    let mut lines = BufReader::new(session.try_clone().unwrap()).lines();
    let mut heard = || lines.next().unwrap().unwrap();
    assert_eq!(heard(), "220 ready");
    writeln!(&session, "PORT 10,1,0,1,{},{}\r", at >> 8, at & 255).unwrap();
    assert_eq!(heard(), "500 no");
    writeln!(&session, "PORT 10,1,0,2,{},{}\r", at >> 8, at & 255).unwrap();
    assert_eq!(heard(), "200 PORT command successful.");
    // The server's address, and the port of the one that listens: whatever the reply named.
    let (mut at_server, _) = data.accept().unwrap();
    let (at_host, from) = waits.accept().unwrap();
    assert_eq!(from.ip().to_string(), "10.2.0.2");
    writeln!(at_server, "a line").unwrap();
    let mut line = String::new();
    BufReader::new(at_host).read_line(&mut line).unwrap();
    assert_eq!(line, "a line\n");
    drop((session, lines));
    let said = server.join().unwrap();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].starts_with("PORT 10,1,0,1,") && said[1] == "PASV", "{said:?}");
}
