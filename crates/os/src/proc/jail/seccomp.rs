//! Seccomp (seccomp(2)): system calls that no accelerator needs are refused, and so are sockets of
//! the Internet, which it is given, and whatever would turn one that it was given into another
//! connection. What is new in a kernel is not known here, so that this is a list of what is denied;
//! files, users and rights are kept by other means.

use std::io;
use std::mem::size_of;

use crate::sys::check;

/// This machine's number in `struct seccomp_data`, where it is known.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_003e);
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_00b7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: Option<u32> = None;

/// To look into other processes and at the kernel, to change the system, to make namespaces, to
/// have memory that is not counted as the process's, and ways around this filter.
const DENIED: [libc::c_long; 52] = [
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_perf_event_open,
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    libc::SYS_fanotify_init,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_lookup_dcookie,
    libc::SYS_personality,
    libc::SYS_nfsservctl,
    libc::SYS_memfd_create,
    libc::SYS_shmget,
];

/// Families of sockets that may be opened. Those of the Internet are given by whoever decides
/// what may be reached; netlink is how the C library learns this host's addresses.
const FAMILIES: [libc::c_int; 2] = [libc::AF_UNIX, libc::AF_NETLINK];
/// What connects while it sends: `connect`, under another name.
const FAST_OPEN: libc::c_int = libc::MSG_FASTOPEN;
/// No address of the Internet is shorter. Those of netlink sockets are.
const SHORTEST_ADDRESS: usize = size_of::<libc::sockaddr_in>();
/// Namespaces that `clone` can make.
const NAMESPACES: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// Where `struct seccomp_data` has the call's number, the machine, and the lower halves of the
/// first four arguments, on machines that count from the low end.
const NUMBER: u32 = 0;
const MACHINE: u32 = 4;
const FIRST: u32 = 16;
const SECOND: u32 = 24;
const THIRD: u32 = 32;
const FOURTH: u32 = 40;
/// Set in the numbers of x86-64's calls with 32-bit pointers, which have others' numbers.
const X32: u32 = 0x4000_0000;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;

const fn refuse(error: libc::c_int) -> u32 {
    libc::SECCOMP_RET_ERRNO | error as u32
}

/// A filter that is ready to be entered.
#[derive(Debug)]
pub struct Filter {
    program: Vec<libc::sock_filter>,
}

impl Filter {
    /// `None` for a machine that is not known.
    pub fn new() -> Option<Filter> {
        let mut p = Program(Vec::new());
        p.load(MACHINE);
        p.unless(ARCHITECTURE?, KILL);
        p.load(NUMBER);
        if cfg!(target_arch = "x86_64") {
            p.if_bits(X32, KILL);
        }
        for call in DENIED {
            p.when(call as u32, refuse(libc::EPERM));
        }
        // Its flags are in memory, where no filter sees them. Without it `clone` is taken.
        p.when(libc::SYS_clone3 as u32, refuse(libc::ENOSYS));
        p.of(libc::SYS_clone, FIRST, |p| p.if_bits(NAMESPACES as u32, refuse(libc::EPERM)));
        // To type into the terminal of whoever started the gateway.
        p.of(libc::SYS_ioctl, SECOND, |p| p.when(libc::TIOCSTI as u32, refuse(libc::EPERM)));
        p.of(libc::SYS_socket, FIRST, |p| {
            for family in FAMILIES {
                p.when(family as u32, ALLOW);
            }
            p.answer(refuse(libc::EAFNOSUPPORT));
        });
        // A socket that it was given could be disconnected, and connected elsewhere or listened on,
        // as this host and past all rules. Landlock knows some of these ways, in newer kernels.
        for call in [libc::SYS_connect, libc::SYS_listen] {
            p.when(call as u32, refuse(libc::EACCES));
        }
        p.of(libc::SYS_bind, THIRD, |p| p.from(SHORTEST_ADDRESS as u32, refuse(libc::EACCES)));
        for (call, flags) in
            [(libc::SYS_sendto, FOURTH), (libc::SYS_sendmsg, THIRD), (libc::SYS_sendmmsg, FOURTH)]
        {
            p.of(call, flags, |p| p.if_bits(FAST_OPEN as u32, refuse(libc::EACCES)));
        }
        p.answer(ALLOW);
        Some(Filter { program: p.0 })
    }

    /// For this process, for good. It must have given up new privileges.
    pub fn enter(&self) -> io::Result<()> {
        let (len, filter) = (self.program.len() as u16, self.program.as_ptr().cast_mut());
        let program = libc::sock_fprog { len, filter };
        // SAFETY: `program` describes the instructions, which outlive the call and are only read.
        check(unsafe {
            let how = libc::SECCOMP_MODE_FILTER;
            libc::prctl(libc::PR_SET_SECCOMP, how, &raw const program)
        })
        .map(drop)
    }
}

/// Instructions of classic BPF.
struct Program(Vec<libc::sock_filter>);

impl Program {
    fn push(&mut self, code: u32, k: u32, jt: u8, jf: u8) {
        self.0.push(libc::sock_filter { code: code as u16, jt, jf, k });
    }

    fn load(&mut self, at: u32) {
        self.push(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at, 0, 0);
    }

    fn answer(&mut self, answer: u32) {
        self.push(libc::BPF_RET | libc::BPF_K, answer, 0, 0);
    }

    /// Answers if what was loaded is `value`.
    fn when(&mut self, value: u32, answer: u32) {
        self.push(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, 0, 1);
        self.answer(answer);
    }

    /// Answers if it is not.
    fn unless(&mut self, value: u32, answer: u32) {
        self.push(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, 1, 0);
        self.answer(answer);
    }

    /// Answers if what was loaded is `least` or more.
    fn from(&mut self, least: u32, answer: u32) {
        self.push(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, least, 0, 1);
        self.answer(answer);
    }

    /// Answers if any of the bits is set.
    fn if_bits(&mut self, bits: u32, answer: u32) {
        self.push(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, bits, 0, 1);
        self.answer(answer);
    }

    /// With one argument of `call` loaded, the instructions of `body`. The number of the call is
    /// loaded before and after.
    fn of(&mut self, call: libc::c_long, argument: u32, body: impl FnOnce(&mut Program)) {
        let mut inside = Program(Vec::new());
        inside.load(argument);
        body(&mut inside);
        inside.load(NUMBER);
        let len = inside.0.len() as u8;
        self.push(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, 0, len);
        self.0.extend(inside.0);
    }
}
