//! Files for real clients to move, their digests, and a small HTTP server.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use os::netns::NetNs;

use crate::harness::{run, said};
use crate::tcp::{accept_within, listen, pattern};

/// Writes a file of `len` bytes that nothing compresses.
pub fn make_file(path: &Path, len: usize) -> PathBuf {
    fs::write(path, pattern(len as u64, len)).expect("a file");
    path.to_owned()
}

/// The SHA-256 of a file, by coreutils.
pub fn sha256(path: &Path) -> String {
    let output = run(Command::new("sha256sum").arg(path));
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().next().expect("a digest").to_owned()
}

/// Serves bodies by path over HTTP/1.1, one request to a connection, and keeps what is
/// put. Ends when dropped.
pub struct HttpServer {
    stop: Arc<AtomicBool>,
}

impl HttpServer {
    pub fn start(
        ns: &NetNs,
        at: &str,
        bodies: &[(&str, Vec<u8>)],
        put_into: PathBuf,
    ) -> HttpServer {
        let listener = listen(ns, at);
        let bodies: BTreeMap<String, Vec<u8>> =
            bodies.iter().map(|(path, body)| ((*path).to_owned(), body.clone())).collect();
        let bodies = Arc::new(bodies);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let Some(stream) = accept_within(&listener, Duration::from_millis(100)) else {
                    continue;
                };
                stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a socket");
                stream.set_write_timeout(Some(Duration::from_secs(120))).expect("a socket");
                let (bodies, put_into) = (bodies.clone(), put_into.clone());
                // A client that goes away in the middle is the client's affair.
                thread::spawn(move || serve(stream, &bodies, &put_into).ok());
            }
        });
        HttpServer { stop }
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn serve(
    stream: TcpStream,
    bodies: &BTreeMap<String, Vec<u8>>,
    put_into: &Path,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split_whitespace();
    let (verb, path) =
        (words.next().unwrap_or("").to_owned(), words.next().unwrap_or("").to_owned());
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let header = header.trim().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(n) = header.strip_prefix("content-length:") {
            length = n.trim().parse().unwrap_or(0);
        }
        if header.starts_with("expect: 100") {
            (&stream).write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
    }
    let (status, body) = match verb.as_str() {
        "PUT" => {
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            fs::write(put_into.join(path.trim_start_matches('/')), body)?;
            ("201 Created", &[][..])
        }
        _ => match bodies.get(&path) {
            Some(body) => ("200 OK", &body[..]),
            None => ("404 Not Found", &[][..]),
        },
    };
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    (&stream).write_all(head.as_bytes())?;
    (&stream).write_all(body)?;
    stream.shutdown(Shutdown::Write)
}
