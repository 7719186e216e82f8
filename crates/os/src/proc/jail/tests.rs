//! What a jailed program cannot do, tried from inside.

use std::fs;
use std::io::IoSlice;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

use super::*;
use crate::netns::root_alone;
use crate::seqpacket::SeqPacket;

fn jail() -> Jail {
    Jail {
        user: Some(User::numbered(60_700, 60_700)),
        memory: ByteCount(256 << 20),
        descriptors: 40,
        reads: Vec::new(),
        writes: Vec::new(),
    }
}

/// What a shell script says in a jail, if it succeeds.
fn said(jail: &Jail, script: &str) -> Result<String, String> {
    says(jail, &["sh", "-c", script], &[])
}

/// What a program says in a jail whose socket brings these descriptors.
fn says(jail: &Jail, words: &[&str], given: &[BorrowedFd<'_>]) -> Result<String, String> {
    let (ours, theirs) = SeqPacket::pair().unwrap();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    lock_in(&mut command, jail, theirs.into()).unwrap();
    ours.send(&[IoSlice::new(b"x")], given, false).unwrap();
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() {
        true => Ok(text.trim().to_owned()),
        false => {
            Err(format!("{} {text}{}", output.status, String::from_utf8_lossy(&output.stderr)))
        }
    }
}

/// A directory that goes with the test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("bpjail-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        Dir(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_jailed_program_is_nobody_and_has_no_rights() {
    if !root_alone() {
        return;
    }
    assert_eq!(said(&jail(), "id -u; id -g; id -G").unwrap(), "60700\n60700\n60700");
    let status = "while read -r line; do echo \"$line\"; done < /proc/self/status";
    let all = Jail { reads: vec!["/proc".into()], ..jail() };
    let status = said(&all, status).unwrap();
    for line in ["CapPrm:", "CapEff:", "CapBnd:", "CapAmb:", "CapInh:"] {
        let line = status.lines().find(|l| l.starts_with(line)).unwrap();
        assert!(line.ends_with("\t0000000000000000"), "{line}");
    }
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.lines().any(|l| l == line), "{line} in {status}");
    }
    assert_eq!(said(&jail(), "ulimit -n; ulimit -v; ulimit -c").unwrap(), "40\n262144\n0");
    assert_eq!(said(&jail(), "ulimit -p").unwrap(), PROCESSES.to_string());
}

#[test]
fn a_jailed_program_has_its_socket_and_no_other_descriptor() {
    if !root_alone() {
        return;
    }
    let _open = fs::File::open("/dev/null").unwrap();
    let all = Jail { reads: vec!["/proc".into()], ..jail() };
    let text = said(&all, "for fd in /proc/$$/fd/*; do readlink $fd; done; true").unwrap();
    let sockets = text.lines().filter(|l| l.starts_with("socket:")).count();
    assert_eq!((sockets, text.lines().count()), (1, 4), "{text}");
}

#[test]
fn a_jailed_program_opens_only_what_it_may_and_makes_no_connections() {
    if !root_alone() {
        return;
    }
    let (open, closed) = (Dir::new("open"), Dir::new("closed"));
    for dir in [&open, &closed] {
        fs::write(dir.path().join("file"), "content").unwrap();
    }
    let [open, closed] = [&open, &closed].map(|d| d.path().display().to_string());
    let jail = Jail { writes: vec![open.clone().into()], ..jail() };
    let script = format!("cat {open}/file; echo more > {open}/new; cat {open}/new");
    assert_eq!(said(&jail, &script).unwrap(), "contentmore");
    for script in [
        format!("cat {closed}/file"),
        format!("echo more > {closed}/new"),
        "cat /etc/hostname".to_owned(),
        format!("cp /bin/true {open}/; exec {open}/true"),
    ] {
        let why = said(&jail, &script).expect_err(&script);
        assert!(why.contains("ermission denied"), "{script}: {why}");
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connect = format!("exec 5<>/dev/tcp/127.0.0.1/{}", listener.local_addr().unwrap().port());
    let why = said(&jail, &format!("bash -c '{connect}'")).expect_err(&connect);
    let refused = ["ermission denied", "not supported"].iter().any(|words| why.contains(words));
    assert!(refused, "by landlock, or sooner by the filter: {why}");
    let udp = "bash -c 'echo x > /dev/udp/127.0.0.1/9'";
    assert!(said(&jail, udp).expect_err(udp).contains("not supported"));
}

/// Tries to make another connection of one that it was given, in every way that there is, and says
/// which calls succeeded.
const ANOTHER_CONNECTION: &str = r#"
import ctypes, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
FAST_OPEN = 0x20000000
given = socket.recv_fds(socket.socket(fileno=3), 10, 4)[1]
server = struct.pack("=H", socket.AF_INET) + struct.pack(">H", int(sys.argv[1]))
server += bytes([127, 0, 0, 1]) + bytes(8)
nothing, anywhere = bytes(16), struct.pack("=H", socket.AF_INET) + bytes(14)

class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_char_p), ("len", ctypes.c_size_t)]

class Message(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("name_len", ctypes.c_uint32),
                ("pieces", ctypes.POINTER(Piece)), ("count", ctypes.c_size_t),
                ("control", ctypes.c_void_p), ("control_len", ctypes.c_size_t),
                ("flags", ctypes.c_int), ("sent", ctypes.c_uint32)]

def message(to):
    piece = ctypes.pointer(Piece(b"x", 1))
    return Message(to, len(to), piece, 1, None, 0, 0, 0)

ways = [
    lambda fd, to: libc.connect(fd, to, 16),
    lambda fd, to: libc.sendto(fd, b"x", 1, FAST_OPEN, to, 16),
    lambda fd, to: libc.sendmsg(fd, ctypes.byref(message(to)), FAST_OPEN),
    lambda fd, to: libc.sendmmsg(fd, ctypes.byref(message(to)), 1, FAST_OPEN),
]
for fd, way in zip(given, ways):
    ways[0](fd, nothing), ways[1](fd, nothing)
    print(way(fd, server) >= 0, libc.bind(fd, anywhere, 16) >= 0, libc.listen(fd, 8) >= 0)
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).bind((0, 0))
if libc.memfd_create(b"x", 0) >= 0 or libc.shmget(0, 4096, 0o1600) >= 0:
    print("memory that nobody counts")
"#;

#[test]
fn a_jailed_program_makes_no_other_connection_of_one_that_it_was_given() {
    if !root_alone() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let given = [(); 4].map(|()| (TcpStream::connect(at).unwrap(), listener.accept().unwrap().0));
    let fds = given.each_ref().map(|(ours, _)| ours.as_fd());
    let port = at.port().to_string();
    let words = ["/usr/bin/python3", "-c", ANOTHER_CONNECTION, &port];
    let said = says(&jail(), &words, &fds).unwrap();
    assert_eq!(said, ["False False False"; 4].join("\n"));
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "it has connected");
}

#[test]
fn a_jailed_program_makes_no_namespaces_and_signals_nobody_outside() {
    if !root_alone() {
        return;
    }
    let why = said(&jail(), "unshare -U true").expect_err("a namespace");
    assert!(why.contains("not permitted"), "{why}");
    let mut other = Command::new("sleep");
    other.arg("60");
    // The same user's, so that only landlock protects it.
    std::os::unix::process::CommandExt::uid(&mut other, 60_700);
    let mut other = other.spawn().unwrap();
    let why = said(&jail(), &format!("kill -9 {}", other.id()));
    let alive = other.try_wait().unwrap().is_none();
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(alive && why.is_err(), "{why:?}");
}

#[test]
fn a_program_that_is_not_there_is_told_and_not_said_to_the_socket() {
    let (ours, theirs) = SeqPacket::pair().unwrap();
    let mut command = Command::new("/no/such/program");
    let jail = Jail { user: None, ..jail() };
    lock_in(&mut command, &jail, theirs.into()).unwrap();
    let why = command.spawn().unwrap_err();
    assert_eq!(why.kind(), io::ErrorKind::NotFound);
    drop(command);
    assert_eq!(ours.receive(&mut [0; 10], true).unwrap().len, 0, "nothing but the end");
}
