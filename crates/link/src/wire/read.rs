//! Frames, read as views into a packet that opened.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use units::{Duration, varint};

use super::*;

/// Reads frames out of an opened packet.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader of `payload`.
    pub fn new(payload: &'a [u8]) -> Reader<'a> {
        Reader { rest: payload }
    }

    /// What was not read.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn byte(&mut self) -> Result<u8, WireError> {
        let (first, rest) = self.rest.split_first().ok_or(WireError::Short)?;
        self.rest = rest;
        Ok(*first)
    }

    pub(super) fn bytes(&mut self, n: u64) -> Result<&'a [u8], WireError> {
        let n = usize::try_from(n).map_err(|_| WireError::Short)?;
        let (head, rest) = self.rest.split_at_checked(n).ok_or(WireError::Short)?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(WireError::Short)?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn varint(&mut self) -> Result<u64, WireError> {
        let (n, len) = varint::take(self.rest).ok_or(WireError::Short)?;
        self.rest = &self.rest[len..];
        Ok(n)
    }

    pub(super) fn id(&mut self) -> Result<StreamId, WireError> {
        self.varint().map(StreamId)
    }

    fn address(&mut self, v6: bool) -> Result<SocketAddr, WireError> {
        let ip = if v6 {
            IpAddr::V6(Ipv6Addr::from(self.array::<16>()?))
        } else {
            IpAddr::V4(Ipv4Addr::from(self.array::<4>()?))
        };
        Ok(SocketAddr::new(ip, u16::from_be_bytes(self.array()?)))
    }

    fn origin(&mut self) -> Result<Origin, WireError> {
        let kind = self.byte()?;
        let dscp = match kind & ORIGIN_DSCP {
            0 => 0,
            _ => self.byte()?,
        };
        // A point that is 0 is left out: each origin has one form.
        if dscp > 63 || dscp == 0 && kind & ORIGIN_DSCP > 0 {
            return Err(WireError::Invalid);
        }
        let client = match (kind & !ORIGIN_DSCP) >> 2 {
            0 => None,
            n @ 1..=2 => Some(self.address(n == 2)?),
            _ => return Err(WireError::Invalid),
        };
        let target = match kind & 3 {
            0 => {
                let len = self.byte()?;
                let name = std::str::from_utf8(self.bytes(u64::from(len))?)
                    .map_err(|_| WireError::Invalid)?;
                let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
                if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(plain) {
                    return Err(WireError::Invalid);
                }
                Target::Name(name.to_owned(), u16::from_be_bytes(self.array()?))
            }
            n @ 1..=2 => Target::Address(self.address(n == 2)?),
            _ => {
                let len = self.byte()?;
                let name = std::str::from_utf8(self.bytes(u64::from(len))?);
                let name = name.ok().filter(|name| is_service_name(name));
                let name = name.ok_or(WireError::Invalid)?.to_owned();
                let len = self.byte()?;
                let preface = self.bytes(u64::from(len))?;
                if preface.len() > MAX_PREFACE {
                    return Err(WireError::Invalid);
                }
                Target::Service(name, preface.to_vec())
            }
        };
        Ok(Origin { client, target, dscp })
    }

    fn state(&mut self) -> Result<StateFrame<'a>, WireError> {
        let hi = self.varint()?;
        let lo = hi.checked_sub(self.varint()?).ok_or(WireError::Invalid)?;
        let delay = Duration::from_nanos(self.varint()?.saturating_mul(STATE_DELAY_UNIT));
        let arrival = self.varint()?;
        if arrival >> ARRIVAL_BITS != 0 {
            return Err(WireError::Invalid);
        }
        let count = self.varint()?;
        let runs = self.rest;
        // Walk once, so that `received` cannot run below `lo` or past the end.
        let mut top = hi;
        for i in 0..count {
            let run = self.varint()?;
            let low = top.checked_sub(run).filter(|l| *l >= lo).ok_or(WireError::Invalid)?;
            if i + 1 < count {
                let gap = self.varint()?.checked_add(2).ok_or(WireError::Invalid)?;
                top = low.checked_sub(gap).filter(|t| *t >= lo).ok_or(WireError::Invalid)?;
            }
        }
        if count == 0 {
            return Err(WireError::Invalid);
        }
        let runs = &runs[..runs.len() - self.rest.len()];
        Ok(StateFrame { hi, lo, delay, arrival, runs, count })
    }

    fn stream(&mut self, kind: u8) -> Result<StreamFrame<'a>, WireError> {
        let id = self.id()?;
        let offset = if kind & STREAM_OFFSET != 0 { self.varint()? } else { 0 };
        let len = if kind & STREAM_LEN != 0 { self.varint()? } else { self.rest.len() as u64 };
        let data = self.bytes(len)?;
        offset.checked_add(len).filter(|e| *e < 1 << 62).ok_or(WireError::Invalid)?;
        Ok(StreamFrame { id, offset, fin: kind & STREAM_FIN != 0, data })
    }

    fn path(&mut self) -> Result<PathId, WireError> {
        PathId::new(self.byte()?).ok_or(WireError::Invalid)
    }

    fn chosen_path(&mut self) -> Result<Option<PathId>, WireError> {
        match self.byte()? {
            NO_PATH => Ok(None),
            number => PathId::new(number).map(Some).ok_or(WireError::Invalid),
        }
    }

    fn path_news(&mut self) -> Result<PathNews, WireError> {
        let (path, version) = (self.path()?, self.varint()?);
        let (flags, priority) = (self.byte()?, self.byte()?);
        if flags & !(PATH_UP | PATH_HEARS | PATH_FACTS | PATH_FREE | PATH_NAME) != 0 {
            return Err(WireError::Invalid);
        }
        let facts = match flags & PATH_FACTS {
            0 => None,
            _ => Some(PathFacts {
                send: self.varint()?,
                receive: self.varint()?,
                rtt: self.varint()?,
                mtu: self.varint()?,
                overhead: self.varint()?,
            }),
        };
        let name = match flags & PATH_NAME {
            0 => CarrierName::default(),
            _ => {
                let len = self.byte()?;
                let name = CarrierName::new(self.bytes(len.into())?);
                name.filter(|name| !name.is_empty()).ok_or(WireError::Invalid)?
            }
        };
        let (up, hears) = (flags & PATH_UP != 0, flags & PATH_HEARS != 0);
        let free = flags & PATH_FREE != 0;
        Ok(PathNews { path, version, up, hears, free, priority, name, facts })
    }

    /// The next frame; `None` at the end of the packet.
    pub fn frame(&mut self) -> Result<Option<Frame<'a>>, WireError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let frame = match self.byte()? {
            // Padding runs to the end of the packet.
            PADDING => {
                self.rest = &[];
                return Ok(None);
            }
            PING => Frame::Ping,
            STATE => Frame::State(self.state()?),
            STATE_OF => Frame::StateOf(self.path()?, self.state()?),
            FLOOR => Frame::Floor(self.varint()?),
            RECOVERED => Frame::Recovered(LossesSeen {
                recovered: self.varint()?,
                gaps: self.varint()?,
                missing: self.varint()?,
            }),
            OPEN => Frame::Open(self.id()?, self.origin()?),
            ACCEPTED => Frame::Accepted(self.id()?),
            PACKETS => Frame::Packets(self.id()?),
            MESSAGES => Frame::Messages(self.id()?),
            RESET => Frame::Reset {
                id: self.id()?,
                reason: ResetReason::from_u8(self.byte()?).ok_or(WireError::Invalid)?,
                end: self.varint()?,
            },
            CREDIT => Frame::Credit(self.id()?, self.varint()?),
            CHALLENGE => Frame::Challenge(u64::from_be_bytes(self.array()?)),
            RESPONSE => Frame::Response(u64::from_be_bytes(self.array()?)),
            CLOSE => Frame::Close(ResetReason::from_u8(self.byte()?).ok_or(WireError::Invalid)?),
            DATAGRAM => Frame::Datagram(self.bytes(self.rest.len() as u64)?),
            HEADERS_TO_END => Frame::Headers(self.bytes(self.rest.len() as u64)?),
            HEADERS_LEN => {
                let len = self.varint()?;
                Frame::Headers(self.bytes(len)?)
            }
            kind @ HEADERS..HEADERS_LEN => Frame::Headers(self.bytes(u64::from(kind - HEADERS))?),
            DATAGRAM_LEN => {
                let len = self.varint()?;
                Frame::Datagram(self.bytes(len)?)
            }
            FRAGMENT => {
                let (id, total, offset) = (self.varint()?, self.varint()?, self.varint()?);
                let len = self.varint()?;
                let data = self.bytes(len)?;
                if offset.checked_add(len).is_none_or(|e| e > total) || len == 0 {
                    return Err(WireError::Invalid);
                }
                Frame::Fragment(FragmentFrame { id, total, offset, data })
            }
            PATH => Frame::Path(self.path_news()?),
            USE => Frame::Use { sequence: self.varint()?, path: self.chosen_path()? },
            kind @ STREAM..=0x17 => Frame::Stream(self.stream(kind)?),
            _ => return Err(WireError::Invalid),
        };
        Ok(Some(frame))
    }
}
