//! Where the body of a forwarded request ends (RFC 9112 section 6): what the client sends
//! behind it is another request, perhaps for another server, which must not see it.

/// What of a client's further bytes goes to the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Rest {
    /// All of them: it is a tunnel.
    #[default]
    Everything,
    /// So many.
    Length(u64),
    /// A body in chunks, as far as it goes.
    Chunks(Chunks),
}

impl Rest {
    /// How many of `bytes` go to the server, from the first on. What is behind them is not
    /// looked at.
    pub fn take(&mut self, bytes: &[u8]) -> usize {
        match self {
            Rest::Everything => bytes.len(),
            Rest::Length(left) => {
                let n = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= n as u64;
                n
            }
            Rest::Chunks(chunks) => chunks.take(bytes),
        }
    }
}

/// Where in a chunked body the bytes stand.
///
/// ```text
/// *( size [ ";" … ] CRLF  data CRLF )  "0" [ ";" … ] CRLF  *( trailer CRLF )  CRLF
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunks(At);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// In a size: its value and its digits so far.
    Size(u64, u8),
    /// Behind it, up to the end of the line.
    SizeLine(u64),
    /// In the data.
    Data(u64),
    /// Behind the data, up to the end of the line.
    DataEnd,
    /// In a line of the trailer: whether there is something in it.
    Trailer(bool),
    /// Behind the body, or behind what is none.
    Over,
}

/// Sixteen digits are the most that fit.
const MAX_DIGITS: u8 = 15;

impl Default for Chunks {
    fn default() -> Chunks {
        Chunks(At::Size(0, 0))
    }
}

impl Chunks {
    fn take(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() && self.0 != At::Over {
            if let At::Data(left) = self.0 {
                let n = (bytes.len() - at).min(usize::try_from(left).unwrap_or(usize::MAX));
                at += n;
                self.0 = match left - n as u64 {
                    0 => At::DataEnd,
                    left => At::Data(left),
                };
                continue;
            }
            self.0 = self.0.next(bytes[at]);
            at += 1;
        }
        at
    }
}

impl At {
    /// Past one byte that is not data.
    fn next(self, byte: u8) -> At {
        match (self, byte) {
            (At::Size(size, digits), _) if byte.is_ascii_hexdigit() && digits < MAX_DIGITS => {
                let digit = (byte as char).to_digit(16).unwrap_or(0);
                At::Size(size << 4 | u64::from(digit), digits + 1)
            }
            (At::Size(_, 0), _) => At::Over,
            (At::Size(size, _) | At::SizeLine(size), b'\n') => match size {
                0 => At::Trailer(false),
                size => At::Data(size),
            },
            (At::Size(size, _), b'\r' | b';' | b' ' | b'\t') => At::SizeLine(size),
            (At::SizeLine(size), _) => At::SizeLine(size),
            (At::DataEnd, b'\r') => At::DataEnd,
            (At::DataEnd, b'\n') => At::Size(0, 0),
            (At::Trailer(false), b'\n') => At::Over,
            (At::Trailer(true), b'\n') => At::Trailer(false),
            (At::Trailer(any), b'\r') => At::Trailer(any),
            (At::Trailer(_), _) => At::Trailer(true),
            // No body is like that: nothing more goes to the server.
            (At::Size(..) | At::DataEnd | At::Data(_) | At::Over, _) => At::Over,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] =
        b"5\r\nhello\r\n1a;x=\"y\"\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\nA: b\r\n\r\n";

    #[test]
    fn a_body_ends_where_its_length_says() {
        let mut rest = Rest::Length(5);
        assert_eq!([rest.take(b"hel"), rest.take(b"lo GET"), rest.take(b"more")], [3, 2, 0]);
        assert_eq!(Rest::Everything.take(b"all"), 3);
        assert_eq!(Rest::Length(u64::MAX).take(b"all"), 3);
    }

    #[test]
    fn a_chunked_body_ends_behind_its_trailer_in_whatever_pieces_it_comes() {
        let all = [BODY, b"GET http://other/ HTTP/1.1\r\n"].concat();
        for size in 1..all.len() {
            let mut rest = Rest::Chunks(Chunks::default());
            let taken: usize = all.chunks(size).map(|piece| rest.take(piece)).sum();
            assert_eq!(taken, BODY.len(), "in pieces of {size}");
        }
        let mut bare = Rest::Chunks(Chunks::default());
        assert_eq!(bare.take(b"2\nab\n0\n\nrest"), 8);
    }

    #[test]
    fn what_is_no_chunked_body_goes_no_further() {
        for (wrong, taken) in [
            (&b"zz\r\n"[..], 1),
            (b"\r\n5\r\n", 1),
            (b"-1\r\n", 1),
            (b"2\r\nabc\r\n", 6),
            (b"11111111111111111\r\n", 16),
        ] {
            let mut rest = Rest::Chunks(Chunks::default());
            assert_eq!(rest.take(wrong), taken, "{wrong:?}");
            assert_eq!(rest.take(b"0\r\n\r\n"), 0);
        }
    }
}
