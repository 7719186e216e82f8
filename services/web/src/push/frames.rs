//! A body with promises between its bytes (spec/web.md, W-PU-2).
//!
//! ```text
//! frame     kind(8) ‖ length(24) ‖ payload
//! kind 0    bytes of the body
//! kind 1    promises: names of objects that come, a line end behind each
//! ```

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

/// Bytes before a frame's payload.
const HEAD: usize = 4;
const DATA: u8 = 0;
const PROMISES: u8 = 1;
/// Bytes of one frame of promises.
pub const MAX_PROMISES: usize = 64 << 10;
/// Names that are read of one: those that a page may have, and one more.
const MAX_NAMES: usize = 513;
const MAX_LENGTH: usize = (1 << 24) - 1;

/// A part of a body with promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Bytes of the body.
    Data(Bytes),
    /// Names of objects that come.
    Promises(Vec<String>),
}

/// The body is not what the peer says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// A kind that nobody knows, or promises without end.
    #[error("a page's body has a frame that nobody knows")]
    Frame,
    /// It ends in the middle of a frame.
    #[error("a page's body breaks off")]
    Short,
}

fn head(kind: u8, length: usize) -> [u8; HEAD] {
    let [.., a, b, c] = (length as u32).to_be_bytes();
    [kind, a, b, c]
}

/// Frames around bytes of a body.
pub fn data(mut bytes: Bytes, frames: &mut Vec<Bytes>) {
    while !bytes.is_empty() {
        let part = bytes.split_to(bytes.len().min(MAX_LENGTH));
        frames.push(Bytes::copy_from_slice(&head(DATA, part.len())));
        frames.push(part);
    }
}

/// A frame of promises; those that it has no room for are left out.
pub fn promises<'a>(names: impl IntoIterator<Item = &'a str>) -> Bytes {
    let mut frame = BytesMut::zeroed(HEAD);
    for name in names {
        if frame.len() - HEAD + name.len() < MAX_PROMISES && !name.contains('\n') {
            frame.put_slice(name.as_bytes());
            frame.put_u8(b'\n');
        }
    }
    let length = frame.len() - HEAD;
    frame[..HEAD].copy_from_slice(&head(PROMISES, length));
    frame.freeze()
}

/// Takes bodies with promises apart, however they arrive.
#[derive(Debug, Default)]
pub struct Reader {
    /// The beginning of a head, or of promises.
    begun: BytesMut,
    /// Bytes of a data frame that are yet to come.
    data_left: usize,
}

impl Reader {
    /// What the next bytes are.
    ///
    /// # Errors
    /// If they are no such body.
    pub fn read(&mut self, mut bytes: Bytes, parts: &mut Vec<Part>) -> Result<(), Broken> {
        while !bytes.is_empty() {
            if self.data_left > 0 {
                let part = bytes.split_to(self.data_left.min(bytes.len()));
                self.data_left -= part.len();
                parts.push(Part::Data(part));
                continue;
            }
            let wanted = self.wanted()?;
            let more = bytes.split_to((wanted - self.begun.len()).min(bytes.len()));
            self.begun.extend_from_slice(&more);
            if self.begun.len() >= HEAD && self.begun.len() == self.wanted()? {
                self.take_frame(parts)?;
            }
        }
        Ok(())
    }

    /// The length of what has begun, as far as it is known.
    fn wanted(&self) -> Result<usize, Broken> {
        match (self.begun.get(..HEAD), self.begun.first()) {
            (Some(head), Some(&PROMISES)) => match (&head[1..]).get_uint(3) as usize {
                length @ ..=MAX_PROMISES => Ok(HEAD + length),
                _ => Err(Broken::Frame),
            },
            _ => Ok(HEAD),
        }
    }

    fn take_frame(&mut self, parts: &mut Vec<Part>) -> Result<(), Broken> {
        let mut frame = self.begun.split();
        let (kind, length) = (frame[0], (&frame[1..HEAD]).get_uint(3) as usize);
        match kind {
            DATA => self.data_left = length,
            PROMISES => {
                frame.advance(HEAD);
                let text = std::str::from_utf8(&frame).map_err(|_| Broken::Frame)?;
                parts.push(Part::Promises(
                    text.lines().take(MAX_NAMES).map(str::to_owned).collect(),
                ));
            }
            _ => return Err(Broken::Frame),
        }
        Ok(())
    }

    /// The body has ended.
    ///
    /// # Errors
    /// If it has no end here.
    pub fn end(&self) -> Result<(), Broken> {
        match self.data_left == 0 && self.begun.is_empty() {
            true => Ok(()),
            false => Err(Broken::Short),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], step: usize) -> Result<Vec<Part>, Broken> {
        let (mut reader, mut parts) = (Reader::default(), Vec::new());
        for part in bytes.chunks(step) {
            reader.read(Bytes::copy_from_slice(part), &mut parts)?;
        }
        reader.end().map(|()| parts)
    }

    #[test]
    fn bytes_and_promises_come_out_in_the_order_in_which_they_went_in() {
        let mut frames = vec![promises([]), promises(["a/b", "c/d?e"])];
        data(Bytes::from_static(b"hello"), &mut frames);
        frames.push(promises(["f/"]));
        data(Bytes::from_static(b", world"), &mut frames);
        let all = frames.concat();
        for step in 1..=all.len() {
            let parts = read(&all, step).unwrap();
            let text: Vec<u8> = parts
                .iter()
                .filter_map(|p| if let Part::Data(d) = p { Some(d.to_vec()) } else { None })
                .flatten()
                .collect();
            assert_eq!(text, b"hello, world");
            let promised = parts.iter().filter(|p| matches!(p, Part::Promises(_)));
            let names = [vec![], vec!["a/b".to_owned(), "c/d?e".into()], vec!["f/".into()]];
            assert!(promised.eq(names.map(Part::Promises).iter()), "{step}: {parts:?}");
        }
    }

    #[test]
    fn what_is_no_such_body_is_refused_and_nothing_grows() {
        assert_eq!(read(&[2, 0, 0, 1, 0], 5), Err(Broken::Frame));
        assert_eq!(read(&[PROMISES, 0xff, 0, 0], 1), Err(Broken::Frame), "16 MB of promises");
        assert_eq!(read(&[DATA, 0, 0, 3, 1], 5), Err(Broken::Short));
        assert_eq!(read(&[DATA, 0], 5), Err(Broken::Short));
        assert_eq!(read(&[PROMISES, 0, 0, 1, 0xff], 5), Err(Broken::Frame), "no text");
        let many: Vec<String> = (0..100_000).map(|n| format!("host/{n}")).collect();
        let frame = promises(many.iter().map(String::as_str));
        assert!(frame.len() <= HEAD + MAX_PROMISES);
        assert!(read(&frame, 1000).is_ok());
    }
}
