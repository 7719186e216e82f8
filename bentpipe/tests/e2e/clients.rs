//! Programs that people use, unmodified, against real servers on the far side.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use os::netns::NetNs;

use crate::files::{HttpServer, make_file, sha256};
use crate::harness::{Daemon, World, must, root, root_alone, wait_for};
use crate::tcp::{pattern, try_connect};

/// Waits until something listens: asked from beside the server, not through the link.
fn wait_for_port(server: &NetNs, at: &str) {
    wait_for(at, || try_connect(server, at).map(drop).map_err(|e| e.to_string()));
}

/// How often each program moves what it moves; sizes are chosen for two seconds of link.
const SIZE: usize = 2_000_000;

pub fn check_same(a: &Path, b: &Path) {
    assert_eq!(sha256(a), sha256(b), "{} and {} are equal", a.display(), b.display());
}

#[test]
fn curl_and_wget_fetch_and_put_files() {
    if !root() {
        return;
    }
    let world = World::new();
    let dir = world.dir("files");
    let body = pattern(91, SIZE);
    let files = [("/file", body.clone()), ("/empty", vec![])];
    let _v4 = HttpServer::start(&world.server, "10.2.0.2:80", &files, world.dir("put"));
    let _v6 = HttpServer::start(&world.server, "[fd02::2]:80", &files, world.dir("put"));
    let original = dir.join("original");
    fs::write(&original, &body).unwrap();
    let upload = make_file(&dir.join("upload"), SIZE);
    let out = dir.join("out");
    let o = out.display();
    for command in [
        format!("curl -sSf -o {o} http://10.2.0.2/file"),
        format!("curl -sSfg -o {o} http://[fd02::2]/file"),
        format!("wget -nv -O {o} http://10.2.0.2/file"),
        format!("wget -nv -O {o} http://[fd02::2]/file"),
    ] {
        let _ = fs::remove_file(&out);
        must(&world.client, &command);
        check_same(&out, &original);
    }
    must(&world.client, &format!("curl -sSf -T {} http://10.2.0.2/copy", upload.display()));
    check_same(&world.dir("put").join("copy"), &upload);
    assert_eq!(must(&world.client, "curl -sSf http://10.2.0.2/empty"), "");
    // Twenty at once, as a browser has them.
    must(
        &world.client,
        &format!(
            "curl -sSf -Z {}",
            (0..20).map(|n| format!("-o {o}.{n} http://10.2.0.2/file ")).collect::<String>()
        ),
    );
    for n in 0..20 {
        check_same(&dir.join(format!("out.{n}")), &original);
    }
}

/// An SSH server of this test's own, and the words that let a client in.
pub fn ssh_server(world: &World) -> (Daemon, String) {
    let dir = world.dir("ssh");
    let d = dir.display();
    must(
        &world.server,
        &format!(
            "ssh-keygen -q -t ed25519 -N '' -f {d}/host && ssh-keygen -q -t ed25519 -N '' -f {d}/user \
             && cp {d}/user.pub {d}/authorized"
        ),
    );
    let config = format!(
        "ListenAddress 10.2.0.2\nListenAddress fd02::2\nHostKey {d}/host\nPidFile none\n\
         AuthorizedKeysFile {d}/authorized\nStrictModes no\nUsePAM no\n\
         PermitRootLogin prohibit-password\nPasswordAuthentication no\n\
         Subsystem sftp internal-sftp\n"
    );
    fs::write(dir.join("config"), config).unwrap();
    // It wants an empty /run/sshd: in a /run of its own, so that nothing is left in the host's.
    let server = Daemon::start(
        &world.server,
        &format!(
            "unshare --mount sh -c 'mount -t tmpfs run /run && mkdir /run/sshd && \
             exec /usr/sbin/sshd -D -e -f {d}/config'"
        ),
        &dir.join("log"),
    );
    wait_for_port(&world.server, "10.2.0.2:22");
    let options = format!(
        "-F none -i {d}/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
         -o LogLevel=ERROR -o BatchMode=yes -o ConnectTimeout=20"
    );
    (server, options)
}

#[test]
fn ssh_scp_sftp_and_rsync_work() {
    if !root() {
        return;
    }
    let world = World::new();
    let (_sshd, options) = ssh_server(&world);
    let dir = world.dir("files");
    let (d, file) = (dir.display(), make_file(&dir.join("file"), SIZE));
    let f = file.display();
    for host in ["10.2.0.2", "fd02::2"] {
        let said = must(&world.client, &format!("ssh {options} root@{host} 'echo hello; exit 0'"));
        assert_eq!(said, "hello\n");
    }
    // Both directions at once through one connection, and the exit code.
    let said = must(
        &world.client,
        &format!("ssh {options} root@10.2.0.2 'sha256sum; exit 7' < {f} || echo code $?"),
    );
    assert_eq!(said, format!("{}  -\ncode 7\n", sha256(&file)));
    must(&world.client, &format!("scp -q {options} {f} root@10.2.0.2:{d}/there"));
    check_same(&file, &dir.join("there"));
    must(&world.client, &format!("scp -q {options} 'root@[fd02::2]:{d}/there' {d}/back"));
    check_same(&file, &dir.join("back"));
    // Legacy scp and a tree by rsync, the second time with little to do.
    must(&world.client, &format!("scp -O -q {options} {f} root@10.2.0.2:{d}/there2"));
    check_same(&file, &dir.join("there2"));
    fs::create_dir_all(dir.join("tree/a/b")).unwrap();
    for n in 0..30 {
        make_file(&dir.join(format!("tree/a/b/{n}")), 10_000 + n * 997);
    }
    for _ in 0..2 {
        must(
            &world.client,
            &format!("rsync -a -e 'ssh {options}' {d}/tree/ root@10.2.0.2:{d}/mirror/"),
        );
    }
    let difference = must(&world.client, &format!("diff -r {d}/tree {d}/mirror && echo same"));
    assert_eq!(difference, "same\n");
}

#[test]
fn rsync_speaks_with_its_own_daemon() {
    if !root() {
        return;
    }
    let world = World::new();
    let dir = world.dir("rsync");
    let d = dir.display();
    fs::create_dir_all(dir.join("share")).unwrap();
    let file = make_file(&dir.join("share/file"), SIZE);
    fs::write(
        dir.join("config"),
        format!(
            "use chroot = no\nuid = root\ngid = root\nlock file = {d}/lock\n\
             [share]\npath = {d}/share\nread only = no\n"
        ),
    )
    .unwrap();
    let _daemon = Daemon::start(
        &world.server,
        &format!("rsync --daemon --no-detach --address=10.2.0.2 --config={d}/config"),
        &dir.join("log"),
    );
    wait_for_port(&world.server, "10.2.0.2:873");
    must(&world.client, &format!("rsync rsync://10.2.0.2/share/file {d}/got"));
    check_same(&file, &dir.join("got"));
    let upload = make_file(&dir.join("upload"), SIZE / 2);
    must(&world.client, &format!("rsync {} rsync://10.2.0.2/share/up", upload.display()));
    check_same(&upload, &dir.join("share/up"));
}

#[test]
fn git_clones_and_pushes() {
    if !root() {
        return;
    }
    let world = World::new();
    let dir = world.dir("git");
    let d = dir.display();
    let git = "git -c user.name=t -c user.email=t@example.org -c init.defaultBranch=main \
               -c safe.directory=* -c gc.auto=0";
    must(
        &world.server,
        &format!(
            "export HOME={d} GIT_CONFIG_NOSYSTEM=1; git config --global safe.directory '*'; \
             {git} init -q --bare {d}/repo.git && {git} init -q {d}/work"
        ),
    );
    make_file(&dir.join("work/big"), SIZE);
    must(
        &world.server,
        &format!(
            "export HOME={d} GIT_CONFIG_NOSYSTEM=1; cd {d}/work && {git} add . && \
             {git} commit -qm one && {git} push -q {d}/repo.git main"
        ),
    );
    // Not by way of `git`, which would leave it behind when it is ended.
    let programs = Command::new("git").arg("--exec-path").output().expect("git runs");
    let programs = String::from_utf8(programs.stdout).expect("a path");
    let _daemon = Daemon::start(
        &world.server,
        &format!(
            "env HOME={d} GIT_CONFIG_NOSYSTEM=1 {}/git-daemon --reuseaddr --listen=10.2.0.2 \
             --base-path={d} --export-all --enable=receive-pack {d}",
            programs.trim()
        ),
        &dir.join("log"),
    );
    wait_for_port(&world.server, "10.2.0.2:9418");
    must(
        &world.client,
        &format!(
            "export HOME={d} GIT_CONFIG_NOSYSTEM=1; {git} clone -q -b main git://10.2.0.2/repo.git {d}/clone"
        ),
    );
    check_same(&dir.join("work/big"), &dir.join("clone/big"));
    make_file(&dir.join("clone/more"), SIZE / 2);
    must(
        &world.client,
        &format!(
            "export HOME={d} GIT_CONFIG_NOSYSTEM=1; cd {d}/clone && {git} add . && \
             {git} commit -qm two && {git} push -q origin main"
        ),
    );
    let log = must(
        &world.server,
        &format!(
            "export HOME={d} GIT_CONFIG_NOSYSTEM=1; {git} -C {d}/repo.git log --format=%s main"
        ),
    );
    assert_eq!(log, "two\none\n");
}

/// An FTP server that takes uploads from anonymous.
pub fn ftp_server(server: &NetNs, at: &str, dir: &Path) -> (Daemon, PathBuf) {
    let d = dir.display();
    fs::create_dir_all(dir.join("root/incoming")).unwrap();
    fs::create_dir_all(dir.join("empty")).unwrap();
    must(server, &format!("chmod 755 {d}/root && chmod 777 {d}/root/incoming"));
    let config = format!(
        "listen=NO\nlisten_ipv6=YES\nbackground=NO\nanonymous_enable=YES\nlocal_enable=NO\n\
         write_enable=YES\nanon_upload_enable=YES\nanon_umask=022\nno_anon_password=YES\n\
         anon_root={d}/root\nsecure_chroot_dir={d}/empty\nconnect_from_port_20=YES\n\
         seccomp_sandbox=NO\nxferlog_enable=NO\nuse_localtime=NO\n"
    );
    fs::write(dir.join("config"), config).unwrap();
    let daemon = Daemon::start(server, &format!("/usr/sbin/vsftpd {d}/config"), &dir.join("log"));
    wait_for_port(server, &format!("{at}:21"));
    (daemon, dir.join("root"))
}

#[test]
fn ftp_moves_files_in_passive_mode() {
    if root() {
        ftp_moves_files(&World::new(), "--ftp-pasv", "on");
    }
}

/// The server opens the connection for the data, from its side of the link and to the address
/// that the client names, its own. See ftp.rs for what works where sources are the hub's.
#[test]
fn ftp_moves_files_in_active_mode_where_sources_are_kept_and_the_ship_is_open_to_the_shore() {
    if root() {
        let world = World::with(|plan| {
            plan.keep();
            plan.open_to_shore();
        });
        ftp_moves_files(&world, "--ftp-port -", "off");
    }
}

fn ftp_moves_files(world: &World, mode: &str, passive: &str) {
    let (_server, ftp_root) = ftp_server(&world.server, "10.2.0.2", &world.dir("ftp"));
    let file = make_file(&ftp_root.join("file"), SIZE);
    let dir = world.dir("files");
    let upload = make_file(&dir.join("upload"), SIZE / 2);
    let (out, up) = (dir.join("out"), upload.display());
    let o = out.display();
    for (n, host) in ["10.2.0.2", "[fd02::2]"].into_iter().enumerate() {
        let _ = fs::remove_file(&out);
        must(&world.client, &format!("curl -sSfg {mode} -o {o} ftp://{host}/file"));
        check_same(&out, &file);
        let name = format!("incoming/copy{n}");
        must(&world.client, &format!("curl -sSfg {mode} -T {up} ftp://{host}/{name}"));
        wait_for("the upload's end", || {
            let len = fs::metadata(ftp_root.join(&name)).map_or(0, |m| m.len());
            (len == SIZE as u64 / 2).then_some(()).ok_or(format!("{len} bytes"))
        });
        check_same(&ftp_root.join(&name), &upload);
    }
    let _ = fs::remove_file(&out);
    must(
        &world.client,
        &format!(
            "HOME={} lftp -c 'set ftp:passive-mode {passive}; set net:max-retries 1; \
             set net:timeout 20; open 10.2.0.2; get file -o {o}'",
            dir.display()
        ),
    );
    check_same(&out, &file);
    world.wait_until_no_streams();
}

#[test]
fn a_dialogue_of_short_lines_is_not_held_back() {
    if !root_alone() {
        return;
    }
    let world = World::new();
    // socat answers each line; thirty questions are thirty round trips of 0.1 s.
    let _server = Daemon::start(
        &world.server,
        "socat TCP-LISTEN:7077,bind=10.2.0.2,reuseaddr,fork EXEC:cat",
        &world.dir("socat").join("log"),
    );
    wait_for_port(&world.server, "10.2.0.2:7077");
    use std::io::{BufRead as _, BufReader, Write as _};
    let stream = crate::tcp::connect(&world.client, "10.2.0.2:7077");
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    let mut dialogue = || {
        let mut times = Vec::new();
        for n in 0..30 {
            let begin = std::time::Instant::now();
            writeln!(&stream, "line {n}").unwrap();
            let mut line = String::new();
            lines.read_line(&mut line).unwrap();
            assert_eq!(line, format!("line {n}\n"));
            times.push(begin.elapsed());
        }
        times.sort_unstable();
        times[15]
    };
    // The best of three: the machine may be busy in one.
    let each = (0..3).map(|_| dialogue()).min().unwrap();
    eprintln!("a question and its answer took {each:?} at an RTT of 100 ms");
    assert!(each < Duration::from_millis(200), "{each:?}");
}
