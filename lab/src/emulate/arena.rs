//! Where frames wait while they cross: packed one after the other into chunks, and a
//! chunk is used again when its last frame is gone. Frames leave nearly in the order
//! they came, so chunks empty in order too; a straggler holds one chunk, not more.
//! Memory grows with what is in the channel and shrinks again; in the steady state
//! nothing is allocated.

/// 170 full frames; at 500 Mbit/s a chunk lasts 4 ms.
const CHUNK: usize = 256 * 1024;

/// Empty chunks that are kept for the next burst, beside a quarter of those in use.
const SPARE: usize = 4;

/// A frame's place. Not checked for use after its release: the engine releases a
/// frame once, after its last copy has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    chunk: u32,
    at: u32,
    len: u32,
}

#[derive(Debug)]
pub(super) struct Arena {
    chunks: Vec<Chunk>,
    /// Chunks with memory and no frames.
    spare: Vec<u32>,
    /// Chunks without memory.
    bare: Vec<u32>,
    /// The chunk that is being filled.
    open: u32,
}

#[derive(Debug)]
struct Chunk {
    memory: Box<[u8]>,
    used: usize,
    frames: usize,
}

impl Chunk {
    fn new() -> Chunk {
        Chunk { memory: vec![0; CHUNK].into(), used: 0, frames: 0 }
    }
}

impl Arena {
    pub(super) fn new() -> Arena {
        Arena { chunks: vec![Chunk::new()], spare: Vec::new(), bare: Vec::new(), open: 0 }
    }

    /// Keeps a copy of `bytes` (at most 64 kB).
    pub(super) fn store(&mut self, bytes: &[u8]) -> Place {
        if self.chunks[self.open as usize].used + bytes.len() > CHUNK {
            self.open_another();
        }
        let chunk = &mut self.chunks[self.open as usize];
        let at = chunk.used;
        chunk.memory[at..at + bytes.len()].copy_from_slice(bytes);
        chunk.used += bytes.len();
        chunk.frames += 1;
        Place { chunk: self.open, at: at as u32, len: bytes.len() as u32 }
    }

    pub(super) fn bytes(&self, place: Place) -> &[u8] {
        let at = place.at as usize;
        &self.chunks[place.chunk as usize].memory[at..at + place.len as usize]
    }

    pub(super) fn bytes_mut(&mut self, place: Place) -> &mut [u8] {
        let at = place.at as usize;
        &mut self.chunks[place.chunk as usize].memory[at..at + place.len as usize]
    }

    /// The frame is gone.
    pub(super) fn release(&mut self, place: Place) {
        let chunk = &mut self.chunks[place.chunk as usize];
        chunk.frames -= 1;
        if chunk.frames > 0 {
            return;
        }
        chunk.used = 0;
        if place.chunk == self.open {
            return;
        }
        let in_use = self.chunks.len() - self.spare.len() - self.bare.len();
        if self.spare.len() < SPARE + in_use / 4 {
            self.spare.push(place.chunk);
        } else {
            self.chunks[place.chunk as usize].memory = Box::default();
            self.bare.push(place.chunk);
        }
    }

    /// Bytes of memory held.
    pub(super) fn memory(&self) -> usize {
        (self.chunks.len() - self.bare.len()) * CHUNK
    }

    fn open_another(&mut self) {
        self.open = if let Some(spare) = self.spare.pop() {
            spare
        } else if let Some(bare) = self.bare.pop() {
            self.chunks[bare as usize] = Chunk::new();
            bare
        } else {
            self.chunks.push(Chunk::new());
            (self.chunks.len() - 1) as u32
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn frames_keep_their_bytes_while_others_come_and_go() {
        let mut arena = Arena::new();
        let mut rng = units::Rng::new(4);
        let mut held = VecDeque::new();
        for i in 0..20_000u64 {
            let bytes = vec![i as u8; rng.between(20, 9_014) as usize];
            held.push_back((arena.store(&bytes), bytes));
            while held.len() as u64 > 300 {
                // Mostly in order, now and then a straggler's turn.
                let at = if rng.below(10) == 0 { rng.below(100) as usize } else { 0 };
                let (place, bytes) = held.remove(at).unwrap();
                assert_eq!(arena.bytes(place), bytes);
                arena.release(place);
            }
        }
        assert!(arena.memory() < 40 * CHUNK, "{} for 1.4 MB of frames", arena.memory());
    }

    #[test]
    fn memory_goes_back_after_a_burst() {
        let mut arena = Arena::new();
        let places: Vec<Place> = (0..50_000).map(|_| arena.store(&[1; 1_514])).collect();
        assert!(arena.memory() > 50_000 * 1_500);
        for place in places {
            arena.release(place);
        }
        assert!(arena.memory() < 100 * CHUNK, "{}", arena.memory());
        let again = arena.store(&[9; 64]);
        assert_eq!(arena.bytes(again), [9; 64]);
    }

    #[test]
    fn a_steady_flow_reuses_the_same_memory() {
        let mut arena = Arena::new();
        let mut held = VecDeque::new();
        let mut peak_early = 0;
        for i in 0..200_000 {
            held.push_back(arena.store(&[2; 1_514]));
            if held.len() > 1_000 {
                arena.release(held.pop_front().unwrap());
            }
            if i == 10_000 {
                peak_early = arena.memory();
            }
        }
        assert_eq!(arena.memory(), peak_early);
    }
}
