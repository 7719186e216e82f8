//! Writing a capture without letting the disk disturb the emulated clock: the engine
//! fills buffers, a thread of its own writes them.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use channel::LossCause;
use units::{Duration, Instant};

use super::Direction;
use crate::pcapng::{self, Record, Way};

/// A buffer is handed to the writer when it holds this much, or once a second.
const BUFFER: usize = 256 * 1024;
/// Buffers under way to the writer: 16 MB, a quarter of a second at 500 Mbit/s.
const BUFFERS: usize = 64;
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// What to capture, and where to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureOptions {
    /// The pcapng file; one that exists is overwritten.
    pub file: PathBuf,
    /// Record lost and refused packets too, with the cause as a comment.
    pub drops: bool,
    /// Keep only the first bytes of each frame; 0 keeps all.
    pub snap: u32,
}

/// A capture in progress.
pub(super) struct Capture {
    options: CaptureOptions,
    /// The wall clock at the emulator's time zero, in nanoseconds since 1970.
    epoch: u64,
    filling: Vec<u8>,
    packets_in_filling: u64,
    last_flush: Instant,
    missed: u64,
    full: Option<SyncSender<Vec<u8>>>,
    empty: Receiver<Vec<u8>>,
    writer: Option<JoinHandle<std::io::Result<()>>>,
}

/// Why a packet that came did not cross.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotCrossed {
    /// It exceeded the policer's bucket.
    Policed,
    Queue,
    Lost(LossCause),
}

impl NotCrossed {
    fn comment(self) -> &'static str {
        match self {
            NotCrossed::Policed => "refused: the policer's bucket was empty",
            NotCrossed::Queue => "refused: the queue was full",
            NotCrossed::Lost(LossCause::Outage) => "lost: outage",
            NotCrossed::Lost(LossCause::BitError) => "lost: bit error",
            NotCrossed::Lost(LossCause::Burst) => "lost: burst",
            NotCrossed::Lost(LossCause::Random) => "lost: random",
            NotCrossed::Lost(LossCause::TooLong) => "lost: too long",
        }
    }
}

impl Capture {
    pub(super) fn start(
        options: CaptureOptions,
        names: [&str; 2],
        now: Instant,
    ) -> std::io::Result<Capture> {
        let file = File::create(&options.file)?;
        let (full, to_write) = sync_channel(BUFFERS);
        let (give_back, empty) = sync_channel(BUFFERS);
        let writer = std::thread::Builder::new()
            .name("capture".into())
            .spawn(move || write_all(file, &to_write, &give_back))?;
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let epoch = (wall.as_nanos() as u64).saturating_sub(now.as_nanos());
        let mut filling = Vec::with_capacity(BUFFER);
        pcapng::section(&mut filling, concat!("bentpipe ", env!("CARGO_PKG_VERSION")));
        for name in names {
            pcapng::interface(&mut filling, name, options.snap);
        }
        Ok(Capture {
            options,
            epoch,
            filling,
            packets_in_filling: 0,
            last_flush: now,
            missed: 0,
            full: Some(full),
            empty,
            writer: Some(writer),
        })
    }

    /// A packet crossed and left by the far port at `at`.
    pub(super) fn crossed(&mut self, direction: Direction, at: Instant, frame: &[u8]) {
        self.record(direction.to(), at, frame, Way::Outbound, None);
    }

    /// A packet did not cross.
    pub(super) fn dropped(
        &mut self,
        direction: Direction,
        at: Instant,
        frame: &[u8],
        why: NotCrossed,
    ) {
        if !self.options.drops {
            return;
        }
        let (interface, way) = match why {
            NotCrossed::Policed | NotCrossed::Queue => (direction.from(), Way::Inbound),
            NotCrossed::Lost(_) => (direction.to(), Way::Outbound),
        };
        self.record(interface, at, frame, way, Some(why.comment()));
    }

    /// Hands the buffer over if it has waited long enough.
    pub(super) fn tick(&mut self, now: Instant) {
        if now.since(self.last_flush) >= FLUSH_EVERY {
            self.last_flush = now;
            self.flush();
        }
    }

    /// Packets that are missing in the file because the disk was too slow.
    pub(super) fn missed(&self) -> u64 {
        self.missed
    }

    /// Writes the rest and closes the file.
    pub(super) fn finish(mut self) -> Result<u64, (PathBuf, std::io::Error)> {
        let rest = std::mem::take(&mut self.filling);
        if let Some(full) = self.full.take() {
            // Fails only if the writer has ended, and then it says why.
            let _ = full.send(rest);
        }
        let Some(writer) = self.writer.take() else { return Ok(self.missed) };
        match writer.join() {
            Ok(Ok(())) => Ok(self.missed),
            Ok(Err(e)) => Err((self.options.file, e)),
            Err(_) => Err((self.options.file, std::io::Error::other("its writer broke down"))),
        }
    }

    fn record(
        &mut self,
        interface: usize,
        at: Instant,
        frame: &[u8],
        way: Way,
        comment: Option<&str>,
    ) {
        let keep = match self.options.snap as usize {
            0 => frame.len(),
            snap => snap.min(frame.len()),
        };
        pcapng::packet(
            &mut self.filling,
            &Record {
                interface: interface as u32,
                time_ns: self.epoch + at.as_nanos(),
                bytes: &frame[..keep],
                full_len: frame.len() as u32,
                way,
                comment,
            },
        );
        self.packets_in_filling += 1;
        if self.filling.len() >= BUFFER - 10_000 {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let Some(full) = &self.full else { return };
        if self.filling.is_empty() {
            return;
        }
        let next = self.empty.try_recv().unwrap_or_else(|_| Vec::with_capacity(BUFFER));
        match full.try_send(std::mem::replace(&mut self.filling, next)) {
            Ok(()) => {}
            Err(TrySendError::Full(mut buffer) | TrySendError::Disconnected(mut buffer)) => {
                self.missed += self.packets_in_filling;
                buffer.clear();
                self.filling = buffer;
            }
        }
        self.packets_in_filling = 0;
    }
}

fn write_all(
    mut file: File,
    to_write: &Receiver<Vec<u8>>,
    give_back: &SyncSender<Vec<u8>>,
) -> std::io::Result<()> {
    while let Ok(mut buffer) = to_write.recv() {
        file.write_all(&buffer)?;
        buffer.clear();
        let _ = give_back.try_send(buffer);
    }
    Ok(())
}

/// Says early, and in one sentence, that a capture file cannot be made.
pub(super) fn cannot_write(file: &Path, e: &std::io::Error) -> String {
    format!("cannot write the capture {}: {e}", file.display())
}
