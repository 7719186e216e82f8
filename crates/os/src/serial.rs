//! Serial lines: a modem's device, and ptys that look like one.
//!
//! A [`Serial`] is a file that the poller watches like a socket. Three things differ:
//!
//! * **Carrier** is asked for ([`Serial::carrier`]), a few times a second while a call is there:
//!   the kernel tells no poller when the modem's control lines change.
//! * **What was written** is sent at the line's pace. [`Serial::unsent`] says how much the kernel
//!   still holds, so that the caller need not queue seconds of data there.
//! * **Unplugging** shows as [`Got::Gone`], also from `write`, and to the poller as a failure. The
//!   file is of no more use then; open it anew when the device is back.
//!
//! DTR falls when the last holder closes the line or dies, so that a call does not outlive who pays
//! for it. What has not left by then is forgotten: the kernel would wait for it for up to half a
//! minute, as long as the modem says by CTS that it takes nothing, and DTR would stay. A pty has no
//! control lines: [`Serial::carrier`] answers `None` and [`Serial::set_dtr`] `false`.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::OsError;
use crate::error::OrCannot;
use crate::sys::{check, check_len, own, retry};

/// How a line is set. Always eight data bits, no parity, one stop bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bits per second between this machine and the modem.
    pub speed: u32,
    /// The modem says by RTS and CTS when it cannot take more.
    pub hardware_flow: bool,
}

/// What came of reading or writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// So many bytes, one at least.
    Bytes(usize),
    /// Nothing now: ask again when the poller says so.
    Nothing,
    /// The device was unplugged, or nobody holds the other side of the pty.
    Gone,
}

/// The speeds that a line can have.
const SPEEDS: [(u32, libc::speed_t); 14] = [
    (300, libc::B300),
    (600, libc::B600),
    (1_200, libc::B1200),
    (2_400, libc::B2400),
    (4_800, libc::B4800),
    (9_600, libc::B9600),
    (19_200, libc::B19200),
    (38_400, libc::B38400),
    (57_600, libc::B57600),
    (115_200, libc::B115200),
    (230_400, libc::B230400),
    (460_800, libc::B460800),
    (921_600, libc::B921600),
    (3_000_000, libc::B3000000),
];

/// A serial line, for this process alone.
#[derive(Debug)]
pub struct Serial {
    fd: OwnedFd,
}

impl Serial {
    /// Opens the line, raw, with DTR set. Does not wait for carrier.
    pub fn open(path: &Path, settings: Settings) -> Result<Serial, OsError> {
        let name = path.display();
        let speed = speed(settings.speed)?;
        let what = || format!("open the serial line {name}");
        let fd = open_tty(path).map_err(|e| with_mend(what(), e))?;
        // SAFETY: no pointers are passed.
        if unsafe { libc::isatty(fd.as_raw_fd()) } == 0 {
            return Err(OsError::refused(format!(
                "{name} is no serial line; name a device such as /dev/ttyUSB0 or /dev/ttyS0"
            )));
        }
        alone(&fd).map_err(|e| {
            OsError::new(what(), e).mend("another program has it: see `fuser`, or stop that one")
        })?;
        set_raw(fd.as_fd(), speed, settings.hardware_flow)
            .or_cannot(|| format!("set the serial line {name}"))?;
        let line = Serial { fd };
        // A pty has none, which is no error.
        let _ = line.set_dtr(true);
        Ok(line)
    }

    /// Reads what has come.
    pub fn read(&self, buf: &mut [u8]) -> Got {
        read(self.fd.as_fd(), buf)
    }

    /// Writes as much as there is room for.
    pub fn write(&self, bytes: &[u8]) -> Got {
        write(self.fd.as_fd(), bytes)
    }

    /// Bytes that were written and have not left yet.
    pub fn unsent(&self) -> usize {
        let mut n: libc::c_int = 0;
        // SAFETY: `n` outlives the call, which writes one int.
        let ok = unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut n) };
        if ok < 0 { 0 } else { usize::try_from(n).unwrap_or(0) }
    }

    /// Forgets what has come and what has not left yet.
    pub fn discard(&self) {
        // SAFETY: no pointers are passed. A line that is gone has nothing to forget.
        unsafe { libc::tcflush(self.fd.as_raw_fd(), libc::TCIOFLUSH) };
    }

    /// True while the modem tells carrier; `None`: this line cannot tell.
    pub fn carrier(&self) -> Option<bool> {
        let mut bits: libc::c_int = 0;
        // SAFETY: `bits` outlives the call, which writes one int.
        let ret = unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::TIOCMGET, &raw mut bits) };
        check(ret).ok().map(|_| bits & libc::TIOCM_CAR != 0)
    }

    /// Sets or drops DTR. False: this line has none, or is gone.
    pub fn set_dtr(&self, on: bool) -> bool {
        let bits: libc::c_int = libc::TIOCM_DTR;
        let request = if on { libc::TIOCMBIS } else { libc::TIOCMBIC };
        // SAFETY: `bits` outlives the call, which reads one int.
        check(unsafe { libc::ioctl(self.fd.as_raw_fd(), request, &raw const bits) }).is_ok()
    }
}

impl Drop for Serial {
    fn drop(&mut self) {
        self.discard();
        // What a pty's other end holds open stays as it is, for the next program too.
        // SAFETY: no pointers are passed.
        unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::TIOCNXCL) };
    }
}

impl AsFd for Serial {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The master side of a pty: what a modem is to the program that opens [`Pty::path`].
///
/// While nobody has the line open, reading and writing answer [`Got::Gone`] and the poller tells a
/// failure without end; look again by time then.
#[derive(Debug)]
pub struct Pty {
    fd: OwnedFd,
    path: PathBuf,
}

impl Pty {
    /// A new pty, raw from the beginning.
    pub fn open() -> Result<Pty, OsError> {
        let what = || "open a pty".to_owned();
        let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: no pointers are passed.
        let fd = own(unsafe { libc::posix_openpt(flags) }).or_cannot(what)?;
        // SAFETY: no pointers are passed.
        check(unsafe { libc::grantpt(fd.as_raw_fd()) }).or_cannot(what)?;
        // SAFETY: no pointers are passed.
        check(unsafe { libc::unlockpt(fd.as_raw_fd()) }).or_cannot(what)?;
        let path = slave_path(&fd).or_cannot(what)?;
        // Else what is written before the other side has set the line would be echoed.
        let slave = open_tty(&path).or_cannot(what)?;
        set_raw(slave.as_fd(), libc::B38400, false).or_cannot(what)?;
        Ok(Pty { fd, path })
    }

    /// The device that another program opens.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Reads what the other side has written.
    pub fn read(&self, buf: &mut [u8]) -> Got {
        read(self.fd.as_fd(), buf)
    }
    /// Writes as much as there is room for.
    pub fn write(&self, bytes: &[u8]) -> Got {
        write(self.fd.as_fd(), bytes)
    }
}

impl AsFd for Pty {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn speed(wanted: u32) -> Result<libc::speed_t, OsError> {
    let found = SPEEDS.iter().find(|(speed, _)| *speed == wanted);
    found.map(|(_, code)| *code).ok_or_else(|| {
        let all: Vec<String> = SPEEDS.iter().map(|(speed, _)| speed.to_string()).collect();
        OsError::refused(format!(
            "{wanted} bit/s is no speed of a serial line; choose one of {}",
            all.join(", ")
        ))
    })
}

fn open_tty(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: `path` is a C string that outlives the call.
    own(unsafe { libc::open(path.as_ptr(), flags) })
}

/// Nobody else may use the line: TIOCEXCL keeps out those without rights, the lock all who ask.
fn alone(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: no pointers are passed.
    check(unsafe { libc::flock(fd.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) })?;
    // SAFETY: no pointers are passed.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCEXCL) }).map(drop)
}

/// Bytes pass as they are, 8N1.
fn set_raw(fd: BorrowedFd<'_>, speed: libc::speed_t, hardware_flow: bool) -> io::Result<()> {
    let mut tio = MaybeUninit::<libc::termios>::zeroed();
    // SAFETY: the kernel fills `tio`, which outlives the call.
    check(unsafe { libc::tcgetattr(fd.as_raw_fd(), tio.as_mut_ptr()) })?;
    // SAFETY: the call above succeeded, so `tio` is filled.
    let mut tio = unsafe { tio.assume_init() };
    // SAFETY: `tio` is a valid termios.
    unsafe { libc::cfmakeraw(&mut tio) };
    tio.c_cflag &= !(libc::CSTOPB | libc::CRTSCTS);
    // HUPCL: DTR falls when we end. CLOCAL: the line opens and stays without carrier.
    tio.c_cflag |= libc::CREAD | libc::CLOCAL | libc::HUPCL;
    if hardware_flow {
        tio.c_cflag |= libc::CRTSCTS;
    }
    // With VMIN 1 "nothing yet" is an error and 0 bytes are the end.
    tio.c_cc[libc::VMIN] = 1;
    tio.c_cc[libc::VTIME] = 0;
    // SAFETY: `tio` is a valid termios that outlives the calls.
    unsafe {
        check(libc::cfsetspeed(&mut tio, speed))?;
        check(libc::tcsetattr(fd.as_raw_fd(), libc::TCSANOW, &tio)).map(drop)
    }
}

fn slave_path(fd: &OwnedFd) -> io::Result<PathBuf> {
    let mut name = [0 as libc::c_char; 64];
    // SAFETY: `name` has room for `name.len()` bytes.
    let ret = unsafe { libc::ptsname_r(fd.as_raw_fd(), name.as_mut_ptr(), name.len()) };
    if ret != 0 {
        return Err(io::Error::from_raw_os_error(ret));
    }
    // SAFETY: the call succeeded, so `name` holds a C string.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    Ok(PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())))
}

fn read(fd: BorrowedFd<'_>, buf: &mut [u8]) -> Got {
    got(retry(|| {
        // SAFETY: pointer and length describe `buf`, which outlives the call.
        check_len(unsafe { libc::read(fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len()) })
    }))
}

fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> Got {
    if bytes.is_empty() {
        return Got::Nothing;
    }
    got(retry(|| {
        // SAFETY: pointer and length describe `bytes`, which outlives the call.
        check_len(unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) })
    }))
}

fn got(result: io::Result<usize>) -> Got {
    match result {
        Ok(0) => Got::Gone,
        Ok(n) => Got::Bytes(n),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Got::Nothing,
        // EIO, ENXIO, ENODEV: the device was unplugged, or the pty's other side is closed.
        Err(_) => Got::Gone,
    }
}

fn with_mend(what: String, e: io::Error) -> OsError {
    let mend = match e.raw_os_error() {
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => {
            "is it plugged in? `ls /dev/tty*` and `dmesg` show what is there"
        }
        Some(libc::EACCES) => "its group (mostly `dialout`) may open it: add the user to that",
        Some(libc::EBUSY) => "another program has it: see `fuser`, or stop that one",
        _ => return OsError::new(what, e),
    };
    OsError::new(what, e).mend(mend)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::{Events, Interest, Poller};
    use units::Duration;

    const SETTINGS: Settings = Settings { speed: 2_400, hardware_flow: true };

    /// Waits for what is there, however slow the machine.
    fn read_all(mut read: impl FnMut(&mut [u8]) -> Got, len: usize) -> Vec<u8> {
        let mut found = Vec::new();
        let mut buf = [0; 512];
        for _ in 0..2_000 {
            match read(&mut buf) {
                Got::Bytes(n) => found.extend_from_slice(&buf[..n]),
                Got::Nothing => std::thread::sleep(std::time::Duration::from_millis(5)),
                Got::Gone => break,
            }
            if found.len() >= len {
                break;
            }
        }
        found
    }

    #[test]
    fn a_line_that_was_closed_is_anybodys() {
        let pty = Pty::open().unwrap();
        let is_exclusive = || {
            let file = open_tty(pty.path()).unwrap();
            let mut on: libc::c_int = -1;
            // SAFETY: `on` outlives the call, which writes one int.
            check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TIOCGEXCL, &raw mut on) }).unwrap();
            on != 0
        };
        let line = Serial::open(pty.path(), SETTINGS).unwrap();
        assert!(is_exclusive());
        drop(line);
        assert!(!is_exclusive());
    }

    #[test]
    fn every_byte_passes_as_it_is_both_ways() {
        let pty = Pty::open().unwrap();
        let line = Serial::open(pty.path(), SETTINGS).unwrap();
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(line.write(&all), Got::Bytes(256));
        assert_eq!(read_all(|buf| pty.read(buf), 256), all);
        assert_eq!(pty.write(&all), Got::Bytes(256));
        assert_eq!(read_all(|buf| line.read(buf), 256), all);
        assert_eq!(line.read(&mut [0; 8]), Got::Nothing, "nothing is echoed");
    }

    #[test]
    fn a_pty_says_that_it_has_no_control_lines() {
        let pty = Pty::open().unwrap();
        let line = Serial::open(pty.path(), SETTINGS).unwrap();
        assert_eq!(line.carrier(), None);
        assert!(!line.set_dtr(false));
        line.discard();
        assert_eq!(line.unsent(), 0);
    }

    #[test]
    fn an_unplugged_line_is_gone_to_the_poller_to_reading_and_to_writing() {
        let pty = Pty::open().unwrap();
        let line = Serial::open(pty.path(), SETTINGS).unwrap();
        let mut poller = Poller::new().unwrap();
        poller.add(&line, 7, Interest::READ).unwrap();
        let mut events = Events::with_capacity(4);
        assert_eq!(poller.wait(&mut events, Some(Duration::ZERO)).unwrap(), 0);
        drop(pty);
        assert_eq!(poller.wait(&mut events, None).unwrap(), 1);
        assert!(events.iter().all(|e| e.token == 7 && e.failed));
        assert_eq!(line.read(&mut [0; 8]), Got::Gone);
        assert_eq!(line.write(b"AT\r"), Got::Gone);
    }

    #[test]
    fn a_pty_sees_its_line_closed_and_opened_again() {
        let pty = Pty::open().unwrap();
        assert_eq!(pty.read(&mut [0; 8]), Got::Gone);
        let line = Serial::open(pty.path(), SETTINGS).unwrap();
        assert_eq!(pty.read(&mut [0; 8]), Got::Nothing);
        drop(line);
        // Another test's child has it, too, until it runs its program.
        let begin = std::time::Instant::now();
        while pty.read(&mut [0; 8]) != Got::Gone {
            assert!(begin.elapsed().as_secs() < 15, "its line is closed");
        }
        let line = Serial::open(pty.path(), SETTINGS).unwrap();
        line.write(b"x");
        assert_eq!(read_all(|buf| pty.read(buf), 1), b"x");
    }

    #[test]
    fn closing_a_line_does_not_wait_for_what_has_not_left() {
        let pty = Pty::open().unwrap();
        let line = Serial::open(pty.path(), SETTINGS).unwrap();
        let mut written = 0;
        while let Got::Bytes(n) = line.write(&[7; 4_096]) {
            written += n;
        }
        drop(line);
        let left = read_all(|buf| pty.read(buf), written).len();
        assert!(left < written, "{left} of {written} bytes were kept for a modem that takes none");
    }

    #[test]
    fn a_line_belongs_to_one_program() {
        let pty = Pty::open().unwrap();
        let _line = Serial::open(pty.path(), SETTINGS).unwrap();
        let error = Serial::open(pty.path(), SETTINGS).unwrap_err().to_string();
        assert!(error.contains("another program has it"), "{error}");
    }

    #[test]
    fn what_is_no_line_is_refused_with_the_mend() {
        let says =
            |path: &str, settings| Serial::open(Path::new(path), settings).unwrap_err().to_string();
        assert!(says("/dev/ttyNONE9", SETTINGS).contains("is it plugged in?"));
        assert!(says("/dev/null", SETTINGS).contains("/dev/null is no serial line; name a device"));
        let odd = Settings { speed: 2_401, ..SETTINGS };
        assert!(says("/dev/null", odd).starts_with("2401 bit/s is no speed of a serial line"));
    }
}
