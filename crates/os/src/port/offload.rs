//! Switching the offloads of an interface off, and on again afterwards.
//!
//! The kernel names an interface's features in a list of strings and takes changes as
//! a bit set over that list (`ETHTOOL_GSTRINGS`, `ETHTOOL_SFEATURES` of
//! linux/ethtool.h). Numbers differ between kernels, names do not.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use crate::OsError;
use crate::error::OrCannot;
use crate::sys::check;

const GET_STRINGS: u32 = 0x1b;
const GET_SET_INFO: u32 = 0x37;
const GET_FEATURES: u32 = 0x3a;
const SET_FEATURES: u32 = 0x3b;
/// `ETH_SS_FEATURES`: the list of strings that names the features.
const FEATURES: u32 = 4;
/// `ETH_GSTRING_LEN`.
const NAME_LEN: usize = 32;
/// More than any kernel has (64 in Linux 6); bounds the memory that a call may fill.
const MOST_FEATURES: usize = 512;
/// u32 words per block of 32 features in the answer to `GET_FEATURES`: available,
/// requested, active, never changed.
const WORDS_PER_BLOCK: usize = 4;
const REQUESTED: usize = 1;

/// Features that make one packet out of several, or leave a packet unfinished.
fn is_offload(name: &str) -> bool {
    let merges = ["rx-gro", "rx-gro-hw", "rx-gro-list", "rx-lro", "rx-udp-gro-forwarding"];
    merges.contains(&name) || name.contains("segmentation") || name.starts_with("tx-checksum-")
}

/// The offloads of one interface, off for as long as this lives.
pub(super) struct Offloads {
    control: OwnedFd,
    name: String,
    /// Per block of 32 features: what was on and is now off.
    were_on: Vec<u32>,
}

impl Offloads {
    /// Switches them off. An interface that knows no such thing is left alone.
    pub(super) fn off(name: &str) -> Result<Offloads, OsError> {
        let control = super::control_socket().or_cannot(|| "open a control socket".into())?;
        let mut this = Offloads { control, name: name.to_owned(), were_on: Vec::new() };
        match this.switch_off() {
            Ok(()) => Ok(this),
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(this),
            Err(e) => Err(OsError::new(format!("switch the offloads of {name} off"), e)
                .mend("run as root or give CAP_NET_ADMIN")),
        }
    }

    fn switch_off(&mut self) -> io::Result<()> {
        let names = self.feature_names()?;
        let requested = self.requested(names.len())?;
        let mut were_on = vec![0u32; names.len().div_ceil(32)];
        for (i, name) in names.iter().enumerate().filter(|(_, name)| is_offload(name)) {
            let bit = 1 << (i % 32);
            if requested[i / 32] & bit != 0 {
                were_on[i / 32] |= bit;
            }
            debug_assert!(!name.is_empty());
        }
        self.were_on = were_on;
        self.set(false)
    }

    fn feature_names(&self) -> io::Result<Vec<String>> {
        // struct ethtool_sset_info: cmd, reserved, mask (u64), then one count.
        let mut info = [GET_SET_INFO, 0, 1 << FEATURES, 0, 0];
        self.ethtool(&mut info)?;
        let count = (info[4] as usize).min(MOST_FEATURES);
        // struct ethtool_gstrings: cmd, set, length, then the strings.
        let mut answer = vec![0u32; 3 + MOST_FEATURES * NAME_LEN / 4];
        answer[..2].copy_from_slice(&[GET_STRINGS, FEATURES]);
        answer[2] = count as u32;
        self.ethtool(&mut answer)?;
        let bytes: Vec<u8> = answer[3..].iter().flat_map(|w| w.to_ne_bytes()).collect();
        let name = |raw: &[u8]| {
            let end = raw.iter().position(|b| *b == 0).unwrap_or(raw.len());
            String::from_utf8_lossy(&raw[..end]).into_owned()
        };
        Ok(bytes.chunks(NAME_LEN).take(count).map(name).collect())
    }

    /// What has been asked for, as a bit set.
    fn requested(&self, features: usize) -> io::Result<Vec<u32>> {
        let blocks = features.div_ceil(32);
        let mut answer = vec![0u32; 2 + blocks * WORDS_PER_BLOCK];
        answer[..2].copy_from_slice(&[GET_FEATURES, blocks as u32]);
        self.ethtool(&mut answer)?;
        Ok(answer[2..].chunks(WORDS_PER_BLOCK).map(|block| block[REQUESTED]).collect())
    }

    /// Sets what was on, and only that, to `on`.
    fn set(&self, on: bool) -> io::Result<()> {
        if self.were_on.iter().all(|bits| *bits == 0) {
            return Ok(());
        }
        let mut command = vec![SET_FEATURES, self.were_on.len() as u32];
        for bits in &self.were_on {
            command.extend([*bits, if on { *bits } else { 0 }]);
        }
        self.ethtool(&mut command)
    }

    fn ethtool(&self, command: &mut [u32]) -> io::Result<()> {
        let mut request =
            super::request(&self.name).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        request.ifr_ifru.ifru_data = command.as_mut_ptr().cast();
        let command_code = libc::SIOCETHTOOL as libc::c_ulong;
        // SAFETY: `request` and the buffer it points to outlive the call; every command
        // above states its size in the buffer and leaves room for the whole answer.
        check(unsafe {
            libc::ioctl(self.control.as_fd().as_raw_fd(), command_code as _, &mut request)
        })
        .map(drop)
    }
}

impl Drop for Offloads {
    fn drop(&mut self) {
        // The interface may be gone, and then there is nothing to restore.
        let _ = self.set(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_merges_or_leaves_packets_unfinished_is_an_offload() {
        for name in ["rx-gro", "tx-tcp6-segmentation", "tx-udp-segmentation", "tx-checksum-ipv4"] {
            assert!(is_offload(name), "{name}");
        }
        for name in ["rx-vlan-filter", "tx-scatter-gather", "highdma", "loopback", "rx-checksum"] {
            assert!(!is_offload(name), "{name}");
        }
    }
}
