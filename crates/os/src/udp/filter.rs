//! What the kernel drops before it comes to a socket: a program is asked about each datagram
//! (socket(7), `SO_ATTACH_FILTER`). What is dropped takes no place in the socket's buffer, and
//! nobody reads it.

use std::os::fd::AsFd as _;

use super::{Instruction, UdpSocket};
use crate::OsError;
use crate::error::OrCannot;
use crate::sys::set_option;

/// Where a datagram's content begins for a filter: it sees the header of UDP, too.
pub const CONTENT: u32 = 8;
/// What a filter answers to let a datagram pass.
pub const PASS: Instruction = Instruction::Answer(u32::MAX);
/// What it answers to drop it.
pub const DROP: Instruction = Instruction::Answer(0);

impl UdpSocket {
    /// Has `program` say of each datagram from now on whether it passes. It sees the first of a run
    /// that GRO joined.
    ///
    /// # Errors
    /// If the kernel does not take the program: it has no memory for it, say.
    pub fn set_filter(&self, program: &[Instruction]) -> Result<(), OsError> {
        let mut code: Vec<libc::sock_filter> = program.iter().map(|i| i.encoded()).collect();
        let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() };
        // The kernel copies the instructions that `program` points to during the call, and
        // `code` outlives it.
        set_option(self.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
            .or_cannot(|| "have the kernel drop a flood".into())
    }

    /// Lets all datagrams pass.
    ///
    /// # Errors
    /// If there is no program.
    pub fn clear_filter(&self) -> Result<(), OsError> {
        set_option(self.as_fd(), libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0)
            .or_cannot(|| "have the kernel drop no more".into())
    }
}
