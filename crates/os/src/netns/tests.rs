//! Namespaces with a cable between them, and what a killed test leaves.

use super::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

#[test]
fn two_namespaces_with_a_cable_between_them_talk_and_are_gone_afterwards() {
    if !root_alone() {
        return;
    }
    let a = NetNs::unique("ostest", "a").unwrap();
    let b = NetNs::unique("ostest", "b").unwrap();
    veth(&a, "eth0", &b, "eth0").unwrap();
    for (ns, v4, v6) in [(&a, "10.9.0.1/24", "fd09::1/64"), (&b, "10.9.0.2/24", "fd09::2/64")] {
        ns.address("eth0", v4).unwrap();
        ns.address("eth0", v6).unwrap();
    }
    for server in ["10.9.0.2:80", "[fd09::2]:80"] {
        let listener = b.run(|| TcpListener::bind(server)).unwrap();
        let mut client = a.run(|| TcpStream::connect(server)).unwrap();
        client.write_all(b"hello").unwrap();
        let mut got = [0; 5];
        listener.accept().unwrap().0.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hello");
    }
    let name = a.name().to_owned();
    drop((a, b));
    assert!(NetNs::open(&name).is_err());
}

#[test]
fn sysctls_and_commands_are_the_namespaces_own() {
    if !root_alone() {
        return;
    }
    let ns = NetNs::unique("ostest", "sysctl").unwrap();
    ns.make_router().unwrap();
    ns.sysctl("net.ipv4.tcp_rmem", "4096 50000 60000").unwrap();
    assert_eq!(ns.read_sysctl("net.ipv4.tcp_rmem").unwrap(), "4096\t50000\t60000");
    let seen = ns.command("cat").arg("/proc/sys/net/ipv4/ip_forward").output().unwrap();
    assert_eq!(seen.stdout, b"1\n");
    assert!(ns.sysctl("net.no.such", "1").unwrap_err().to_string().contains("net.no.such"));
}

#[test]
fn what_a_killed_process_left_is_removed_and_a_living_ones_is_not() {
    if !root_alone() {
        return;
    }
    // No process has this number: it is above the kernel's highest.
    let left = "ostest-9999999-left";
    command::run(Command::new("ip").args(["netns", "add", left]), "").unwrap();
    let living = NetNs::unique("ostest", "living").unwrap();
    assert!(NetNs::open(left).is_err());
    assert!(NetNs::open(living.name()).is_ok());
}

#[test]
fn names_that_are_not_ours_have_no_owner() {
    assert_eq!(owner_of("bp", "bp-12-x"), Some(12));
    for other in ["bpx-12-x", "bp-12", "bp-x-y", "other", "bp--1-x"] {
        assert_eq!(owner_of("bp", other), None, "{other}");
    }
}

/// Runs a test that needs root as nobody; whether it succeeded, and what was printed.
fn without_root(skip: Option<&str>) -> (bool, String) {
    // A copy, because nobody may not look into our directories.
    let program = std::env::temp_dir().join(format!("ostest-{}-program", std::process::id()));
    // A child writes the copy: what this process has open for writing, children that other threads
    // fork meanwhile hold open, too, and nobody can run it (ETXTBSY).
    let made = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status();
    assert!(made.unwrap().success());
    let mut command = Command::new(&program);
    command.args(["--exact", "netns::tests::sysctls_and_commands_are_the_namespaces_own"]);
    command.current_dir("/").uid(65_534).gid(65_534).env_remove("BENTPIPE_SKIP_ROOT_TESTS");
    command.envs(skip.map(|value| ("BENTPIPE_SKIP_ROOT_TESTS", value)));
    let output = command.output().unwrap();
    fs::remove_file(&program).unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

#[test]
fn without_root_tests_that_need_it_fail_or_on_request_are_skipped_and_say_so() {
    if !root_alone() {
        return;
    }
    let (passed, text) = without_root(None);
    assert!(!passed && text.contains("this test needs root"), "{text}");
    let (passed, text) = without_root(Some("1"));
    assert!(passed && text.contains("skipped netns::tests::sysctls"), "{text}");
}
