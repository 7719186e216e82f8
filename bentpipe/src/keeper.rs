//! The keeper of services: a small program beside the gateway that starts them.
//!
//! The gateway gives up the right to become other users before its first packet, and a service
//! that failed has to be started again long after that. So it starts this program first, by its
//! own file, tells it which services there are and that these are all, and asks it from then on
//! for no more than "start number n" and "end number n". Whoever takes the gateway over cannot
//! have anything else started, and no user be root.
//!
//! The two talk by packets of JSON on the keeper's standard input. When the gateway is gone, so
//! are the services.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};

use miette::IntoDiagnostic as _;
use os::OsError;
use os::poll::{Events, Interest, Poller};
use os::proc::jail::{self, Jail, Locks};
use os::proc::{Right, User};
use os::seqpacket::SeqPacket;
use serde::{Deserialize, Serialize};
use service::packet;
use units::ByteCount;

use console::Global;

/// Starts services for the gateway that starts it.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// A service, as it is to be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Its name.
    pub name: String,
    /// Program and arguments.
    pub command: Vec<String>,
    /// The numbers of its user and his group; `None`: those of the gateway.
    pub user: Option<(u32, u32)>,
    /// Of its address space.
    pub memory: u64,
    /// Most open descriptors.
    pub descriptors: u64,
    /// Where it may write.
    pub directory: Option<PathBuf>,
    /// What it may read.
    pub reads: Vec<PathBuf>,
}

/// What the gateway says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Order {
    /// One more service; not after [`Order::Sealed`].
    Service(Spec),
    /// These are all that there will be: from here on they can be started and ended.
    Sealed,
    /// Start it. With its socket, and what it writes its errors to.
    Start {
        /// In the order in which they were told.
        service: usize,
    },
    /// End it, if it runs.
    End {
        /// Likewise.
        service: usize,
    },
}

/// What the keeper says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "notice", rename_all = "snake_case")]
pub enum Notice {
    /// It runs.
    Started {
        /// Which service.
        service: usize,
        /// Its process.
        pid: u32,
        /// The version of landlock that keeps it; 0: none.
        landlock: u32,
        /// Its system calls are filtered.
        seccomp: bool,
    },
    /// It does not run (any more).
    Ended {
        /// Which service.
        service: usize,
        /// Why, for the log.
        how: String,
    },
}

struct Kept {
    spec: Spec,
    running: Option<(Child, OwnedFd)>,
}

const GATEWAY: u64 = 0;
const CHILDREN: u64 = 1;

/// Starts services until the gateway ends.
///
/// # Errors
/// If it was not a gateway that started this.
pub fn run(_args: Args, _global: &Global) -> miette::Result<ExitCode> {
    let gateway = SeqPacket::inherited(0).into_diagnostic()?;
    let rights = [Right::Kill, Right::SetGid, Right::SetUid, Right::SetPcap];
    os::proc::keep_rights(&rights).into_diagnostic()?;
    let poller = Poller::new().into_diagnostic()?;
    poller.add(&gateway, GATEWAY, Interest::READ).into_diagnostic()?;
    let mut keeper = Keeper { gateway, poller, kept: Vec::new(), sealed: false };
    let mut events = Events::with_capacity(32);
    loop {
        keeper.poller.wait(&mut events, None).into_diagnostic()?;
        for event in events.iter() {
            match event.token {
                GATEWAY => {
                    if !keeper.take_order() {
                        keeper.end_all();
                        return Ok(ExitCode::SUCCESS);
                    }
                }
                child => keeper.on_end((child - CHILDREN) as usize),
            }
        }
    }
}

struct Keeper {
    gateway: SeqPacket,
    poller: Poller,
    kept: Vec<Kept>,
    /// Nothing is added any more.
    sealed: bool,
}

impl Keeper {
    /// False if the gateway is gone, or says what it may not.
    fn take_order(&mut self) -> bool {
        let mut room = service::room();
        let got = match self.gateway.receive(&mut room, false) {
            Ok(got) if got.len > 0 => got,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
            _ => return false,
        };
        match packet::decode::<Order>(&room[..got.len]) {
            Ok((Order::Service(spec), _)) if !self.sealed && !spec.is_roots() => {
                self.kept.push(Kept { spec, running: None });
            }
            Ok((Order::Sealed, _)) => self.sealed = true,
            Ok((Order::Start { service }, _)) if self.sealed => {
                self.start(service, got.descriptors);
            }
            Ok((Order::End { service }, _)) if self.sealed => {
                if let Some((child, _)) =
                    self.kept.get_mut(service).and_then(|k| k.running.as_mut())
                {
                    // Its end is told when it has come.
                    let _ = child.kill();
                }
            }
            _ => return false,
        }
        true
    }

    fn start(&mut self, service: usize, descriptors: Vec<OwnedFd>) {
        let Ok([socket, errors]) = <[OwnedFd; 2]>::try_from(descriptors) else { return };
        let Some(kept) = self.kept.get_mut(service).filter(|k| k.running.is_none()) else { return };
        let started = kept.spec.start(socket, errors).and_then(|(child, locks)| {
            let end = os::proc::end_of(&child).map_err(|e| OsError::new("watch a service", e));
            end.map(|end| (child, end, locks))
        });
        match started {
            Ok((child, end, Locks { landlock, seccomp })) => {
                let (pid, token) = (child.id(), CHILDREN + service as u64);
                // Without the watch its end would be seen by its socket alone, and it would not be
                // started again.
                let watched = self.poller.add(&end, token, Interest::READ);
                kept.running = Some((child, end));
                self.tell(&Notice::Started { service, pid, landlock, seccomp });
                if watched.is_err() {
                    self.on_end(service);
                }
            }
            Err(why) => self.tell(&Notice::Ended { service, how: why.to_string() }),
        }
    }

    /// A service has ended; what it left behind ends with it.
    fn on_end(&mut self, service: usize) {
        let running = self.kept.get_mut(service).and_then(|kept| kept.running.take());
        if let Some((mut child, end)) = running {
            os::proc::end_group(&mut child);
            let _ = self.poller.remove(&end);
            let how = child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
            self.tell(&Notice::Ended { service, how });
        }
    }

    fn end_all(&mut self) {
        // All before the first is waited for.
        self.kept.iter().filter_map(|kept| kept.running.as_ref()).for_each(|(child, _)| {
            os::proc::kill_group(child);
        });
        for (child, _) in self.kept.iter_mut().filter_map(|kept| kept.running.as_mut()) {
            os::proc::end_group(child);
        }
    }

    fn tell(&self, notice: &Notice) {
        if let Ok(packet) = packet::encode(notice, b"") {
            // A gateway that does not take it is gone, or about to be.
            let _ = self.gateway.send(&[io::IoSlice::new(&packet)], &[], true);
        }
    }
}

impl Spec {
    /// Would it run as root, or with root's group?
    fn is_roots(&self) -> bool {
        self.user.map_or(os::proc::is_root(), |(uid, gid)| User::numbered(uid, gid).is_root())
    }

    fn start(&self, socket: OwnedFd, errors: OwnedFd) -> Result<(Child, Locks), OsError> {
        let words = || format!("start the service {}", self.name);
        let program = self.command.first().ok_or_else(|| OsError::refused(words()))?;
        let output = errors.try_clone().map_err(|e| OsError::new(words(), e))?;
        let home = self.directory.clone().unwrap_or_else(|| "/".into());
        let mut command = Command::new(program);
        command
            .args(&self.command[1..])
            .current_dir(&home)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", &home)
            .env("LANG", "C.UTF-8")
            // Each arena of the C library's would take 64 MiB of the address space.
            .env("MALLOC_ARENA_MAX", "2")
            .env(service::SOCKET_VARIABLE, jail::SOCKET.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::from(output))
            .stderr(Stdio::from(errors));
        // What its command names it may read: a script, say.
        let named = self.command.iter().map(PathBuf::from).filter(|path| path.is_absolute());
        let jail = Jail {
            user: self.user.map(|(uid, gid)| User::numbered(uid, gid)),
            memory: ByteCount(self.memory),
            descriptors: self.descriptors,
            reads: self.reads.iter().cloned().chain(named).collect(),
            writes: self.directory.iter().cloned().collect(),
        };
        let locks = jail::lock_in(&mut command, &jail, socket)?;
        let child = command.spawn().map_err(|e| {
            OsError::new(words(), e).mend(format!("is {program} there, and may everybody run it?"))
        })?;
        Ok((child, locks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A keeper, and what a gateway holds of it.
    fn keeper() -> (Keeper, SeqPacket) {
        let (ours, theirs) = SeqPacket::pair().unwrap();
        let poller = Poller::new().unwrap();
        (Keeper { gateway: ours, poller, kept: Vec::new(), sealed: false }, theirs)
    }

    fn spec(user: Option<(u32, u32)>) -> Order {
        Order::Service(Spec {
            name: "echo".to_owned(),
            command: vec!["/bin/true".to_owned()],
            user,
            memory: 1 << 28,
            descriptors: 32,
            directory: None,
            reads: Vec::new(),
        })
    }

    /// Does the keeper go on after this order?
    fn takes(keeper: &mut Keeper, gateway: &SeqPacket, order: &Order) -> bool {
        let packet = packet::encode(order, b"").unwrap();
        gateway.send(&[io::IoSlice::new(&packet)], &[], false).unwrap();
        keeper.take_order()
    }

    #[test]
    fn nothing_is_added_once_all_are_told_though_nothing_runs() {
        let (mut keeper, gateway) = keeper();
        let user = Some((60_706, 60_706));
        assert!(takes(&mut keeper, &gateway, &spec(user)));
        assert!(takes(&mut keeper, &gateway, &spec(user)));
        assert!(takes(&mut keeper, &gateway, &Order::Sealed));
        assert!(takes(&mut keeper, &gateway, &Order::End { service: 0 }), "none runs");
        assert!(!takes(&mut keeper, &gateway, &spec(user)));
        assert_eq!(keeper.kept.len(), 2);
    }

    #[test]
    fn nothing_is_started_before_all_are_told() {
        for order in [Order::Start { service: 0 }, Order::End { service: 0 }] {
            let (mut keeper, gateway) = keeper();
            assert!(takes(&mut keeper, &gateway, &spec(Some((60_706, 60_706)))));
            assert!(!takes(&mut keeper, &gateway, &order), "{order:?}");
        }
    }

    #[test]
    fn nothing_is_started_as_root_nor_with_roots_group() {
        let mut users = vec![Some((0, 0)), Some((0, 60_706)), Some((60_706, 0))];
        // That of the keeper itself.
        users.extend(os::proc::is_root().then_some(None));
        for user in users {
            let (mut keeper, gateway) = keeper();
            assert!(!takes(&mut keeper, &gateway, &spec(user)), "{user:?}");
            assert!(keeper.kept.is_empty());
        }
    }
}
