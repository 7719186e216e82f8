//! Several sockets on one port, each with its own part of the packets.
//!
//! The kernel asks a small program which socket of the group (`SO_REUSEPORT`) a datagram
//! is for: a classic BPF program that reads the datagram's content and answers with the
//! number of the socket, by the order in which they were opened (socket(7),
//! `SO_ATTACH_REUSEPORT_CBPF`). It sees the first datagram of a run that GRO joined.

use std::io::ErrorKind;
use std::os::fd::AsFd as _;
use std::thread;
use std::time::{Duration, Instant};

use super::{UdpConfig, UdpSocket};
use crate::OsError;
use crate::error::OrCannot;
use crate::sys::set_option;

/// One instruction of a classic BPF program. Jumps count the instructions that they skip.
/// A load beyond the datagram's end ends the program with 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Loads the byte at this offset.
    Byte(u32),
    /// Loads two bytes in network order.
    Half(u32),
    /// Loads four bytes in network order.
    Word(u32),
    /// Draws four bytes.
    Random,
    /// Keeps these bits of what was loaded.
    And(u32),
    /// Divides what was loaded by this number (not 0) and keeps the remainder.
    Modulo(u32),
    /// Goes on behind so many instructions.
    Skip(u32),
    /// If what was loaded is another number, goes on behind so many instructions.
    SkipUnless(u32, u8),
    /// If what was loaded is below this number, goes on behind so many instructions.
    SkipBelow(u32, u8),
    /// Ends with this number.
    Answer(u32),
    /// Ends with what was loaded.
    AnswerLoaded,
}

impl Instruction {
    pub(super) fn encoded(self) -> libc::sock_filter {
        use libc::{
            BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K,
            BPF_LD, BPF_MOD, BPF_RET, BPF_W, SKF_AD_OFF, SKF_AD_RANDOM,
        };
        // Not in the C library's Rust form: "return the accumulator" (linux/filter.h).
        const BPF_A: u32 = 0x10;
        let (code, jt, jf, k) = match self {
            Instruction::Byte(at) => (BPF_LD | BPF_B | BPF_ABS, 0, 0, at),
            Instruction::Half(at) => (BPF_LD | BPF_H | BPF_ABS, 0, 0, at),
            Instruction::Word(at) => (BPF_LD | BPF_W | BPF_ABS, 0, 0, at),
            Instruction::Random => {
                (BPF_LD | BPF_W | BPF_ABS, 0, 0, (SKF_AD_OFF + SKF_AD_RANDOM) as u32)
            }
            Instruction::And(bits) => (BPF_ALU | BPF_AND | BPF_K, 0, 0, bits),
            Instruction::Modulo(by) => (BPF_ALU | BPF_MOD | BPF_K, 0, 0, by),
            Instruction::Skip(n) => (BPF_JMP | BPF_JA, 0, 0, n),
            Instruction::SkipUnless(is, n) => (BPF_JMP | BPF_JEQ | BPF_K, 0, n, is),
            Instruction::SkipBelow(is, n) => (BPF_JMP | BPF_JGE | BPF_K, 0, n, is),
            Instruction::Answer(n) => (BPF_RET | BPF_K, 0, 0, n),
            Instruction::AnswerLoaded => (BPF_RET | BPF_A, 0, 0, 0),
        };
        libc::sock_filter { code: code as u16, jt, jf, k }
    }
}

/// How long a child may take from its fork to its program.
const CHILD_STARTS: Duration = Duration::from_secs(2);

impl UdpSocket {
    /// Opens `n` sockets (at least 1) on one port; `program` says which of them, from 0,
    /// gets a datagram. One socket alone needs no program and shares its port with nobody.
    ///
    /// A socket that is closed moves the last into its place and so misdirects what the
    /// program sends there: close them together.
    ///
    /// # Errors
    /// As [`UdpSocket::bind`], also where another program shares the port; and if the
    /// kernel does not take the program.
    pub fn bind_group(
        config: &UdpConfig,
        n: usize,
        program: &[Instruction],
    ) -> Result<Vec<UdpSocket>, OsError> {
        // Alone first: the kernel would let another group of this user's share the port.
        let alone = UdpSocket::bind(&UdpConfig { reuse_port: false, ..config.clone() })?;
        if n <= 1 {
            return Ok(vec![alone]);
        }
        let config = UdpConfig { local: alone.local_addr(), reuse_port: true, ..config.clone() };
        drop(alone);
        // A child that is being started has the socket, too, until it runs its program.
        let begin = Instant::now();
        let first = loop {
            match UdpSocket::bind(&config) {
                Err(e) if e.kind() == ErrorKind::AddrInUse && begin.elapsed() < CHILD_STARTS => {
                    thread::sleep(Duration::from_millis(5));
                }
                bound => break bound?,
            }
        };
        attach(&first, program).or_cannot(|| "divide the carrier's packets by BPF".into())?;
        let others = (1..n).map(|_| UdpSocket::bind(&config));
        std::iter::once(Ok(first)).chain(others).collect()
    }
}

fn attach(socket: &UdpSocket, program: &[Instruction]) -> std::io::Result<()> {
    let mut code: Vec<libc::sock_filter> = program.iter().map(|i| i.encoded()).collect();
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() };
    // The kernel copies the instructions that `program` points to during the call, and
    // `code` outlives it.
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, program)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(at: &str) -> UdpConfig {
        UdpConfig::new(at.parse().unwrap())
    }

    #[test]
    fn a_group_shares_its_port_with_no_other() {
        let program = [Instruction::Answer(0)];
        let group = UdpSocket::bind_group(&config("127.0.0.1:0"), 2, &program).unwrap();
        assert_eq!(group[0].local_addr(), group[1].local_addr());
        let same = UdpConfig { local: group[0].local_addr(), ..config("127.0.0.1:0") };
        for n in [1, 2] {
            let refused = UdpSocket::bind_group(&same, n, &program).unwrap_err().to_string();
            assert!(refused.contains("in use"), "{refused}");
        }
        drop(group);
        // A child that another test is starting has the sockets, too, until it runs its program.
        let begin = Instant::now();
        while let Err(e) = UdpSocket::bind_group(&same, 2, &program) {
            assert!(begin.elapsed() < CHILD_STARTS.saturating_mul(5), "{e}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}
