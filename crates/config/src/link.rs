//! The link of a peer: a profile, a `link = { … }` table, or the table on top of the
//! profile.

use std::ops::Range;

use std::path::PathBuf;

use link::session::{End, RateMode};
use units::{BitRate, ByteCount, Duration, Ratio};

use super::problem::Problem;
use super::profile::Profile;
use super::reader::{At, Section};
use super::suggest;
use super::traffic::HEADERS;

/// What the link to a peer can do, as this node sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkSettings {
    /// This node to the peer, counted on IP packets. Above 0, at most 10 Gbit/s.
    pub send: BitRate,
    /// The peer to this node, counted on IP packets. Above 0, at most 10 Gbit/s.
    pub receive: BitRate,
    /// One way, at most 60 s.
    pub delay: Duration,
    /// Bit-error ratio, 0 to 0.01: a packet of n bytes is lost with 1 − (1 − ber)^8n.
    pub ber: Ratio,
    /// Packets lost whatever their size, 0 to 0.5.
    pub loss: Ratio,
    /// The largest IP packet that the link takes, 128 to 9000 bytes.
    pub mtu: u16,
    /// What the modem may hold in its own queue; `None` leaves it nearly empty (10 ms).
    pub queue: Option<Queue>,
    /// The framing that the link adds to an IP packet and the rate must carry too.
    pub overhead: Overhead,
    /// How the sending rate is known.
    pub rate: RateMode,
    /// Where the modem's rate is read, if it is reported and not by the admin API alone.
    pub modem: Option<Modem>,
    /// Are the headers of packets that are not split compressed, if the peer wants it too?
    pub headers: bool,
    /// Which end of its profile this node is, if the file says it.
    pub end: Option<End>,
}

impl LinkSettings {
    /// Can a path over a link like this go on as one over the other? What a path is, but for its
    /// rates, is told when it begins.
    pub fn is_one_path(&self, other: &LinkSettings) -> bool {
        self.delay == other.delay
            && self.mtu == other.mtu
            && self.ber == other.ber
            && self.overhead == other.overhead
            && self.queue == other.queue
    }
}

/// Where the rate of a modem is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Modem {
    /// From what.
    pub source: ModemSource,
    /// How often, 100 ms to one hour.
    pub every: Duration,
}

/// What says the rate of a modem: a number of bit/s, or a rate such as `8Mbit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModemSource {
    /// The first line of a file.
    File(PathBuf),
    /// The first line that a shell command prints.
    Command(String),
}

/// The size of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// So many bytes of IP packets.
    Bytes(ByteCount),
    /// So long at the link's rate.
    Time(Duration),
}

/// What a link's own framing adds to each IP packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overhead {
    /// A fixed number of bytes, 0 to 256.
    Bytes(u16),
    /// Header, check sequence, preamble and gap of Ethernet: 38 bytes, and at least 84
    /// bytes a frame (IEEE 802.3).
    Ethernet,
    /// AAL5 over ATM with LLC/SNAP (RFC 2684): 16 bytes, then whole cells of 53 bytes
    /// for every 48.
    Atm,
    /// HDLC-like framing of PPP (RFC 1662): 8 bytes with a 16-bit check sequence.
    Hdlc,
    /// Nothing.
    #[default]
    None,
}

impl Overhead {
    /// What an IP packet of `bytes` takes on the line.
    pub const fn on_the_line(self, bytes: u64) -> u64 {
        match self {
            Overhead::None => bytes,
            Overhead::Bytes(n) => bytes + n as u64,
            Overhead::Ethernet => {
                let frame = bytes + 38;
                if frame < 84 { 84 } else { frame }
            }
            Overhead::Atm => (bytes + 16).div_ceil(48) * 53,
            Overhead::Hdlc => bytes + 8,
        }
    }
}

impl LinkSettings {
    /// The bytes that are under way when the link is full: rate × round trip, of the
    /// faster direction.
    pub fn bandwidth_delay_product(&self) -> ByteCount {
        self.send.max(self.receive).bytes_in(self.delay.times(2))
    }
}

/// What a profile or a link table says; the parts it leaves out are `None`.
#[derive(Default)]
pub(super) struct LinkPart {
    pub send: Option<At<BitRate>>,
    pub receive: Option<At<BitRate>>,
    pub delay: Option<At<Duration>>,
    /// Which of the three above the file gives at all, well or badly.
    given: [bool; 3],
    pub ber: Option<Ratio>,
    pub loss: Option<Ratio>,
    pub mtu: Option<u16>,
    /// No packet takes longer on the line, on the slower way of the two.
    pub packet_time: Option<Duration>,
    pub queue: Option<Queue>,
    pub overhead: Option<Overhead>,
    pub rate: Option<RateMode>,
    pub modem: Option<Modem>,
    pub headers: Option<bool>,
}

const MAX_RATE: BitRate = BitRate::from_kbps(10_000_000);
const MAX_DELAY: Duration = Duration::from_secs(60);
const MTU: std::ops::RangeInclusive<u64> = 128..=9000;
pub(super) const DEFAULT_MTU: u16 = 1500;

/// A rate above 0 and at most 10 Gbit/s.
pub(super) fn rate(section: &mut Section<'_>, key: &'static str) -> Option<At<BitRate>> {
    let rate = section.get::<BitRate>(key)?;
    let title = section.title();
    if rate.value == BitRate::from_bps(0) {
        let problem = Problem::at(rate.span, format!("{key} in {title} is a rate of 0"))
            .help("write the link's rate; a link that carries nothing cannot be a peer's link");
        section.problems().add(problem);
        return None;
    }
    if rate.value > MAX_RATE {
        let message = format!("{key} in {title} is above {MAX_RATE}");
        section.problems().add(Problem::at(rate.span, message));
        return None;
    }
    Some(rate)
}

impl LinkPart {
    /// What profiles and link tables have in common.
    pub fn read_common(section: &mut Section<'_>) -> LinkPart {
        LinkPart {
            delay: read_delay(section),
            ber: section.share("ber", 0.01).map(|b| Ratio::from_f64(b.value)),
            loss: section.share("loss", 0.5).map(|l| Ratio::from_f64(l.value)),
            mtu: section.number("mtu", MTU, "bytes").and_then(|mtu| u16::try_from(mtu.value).ok()),
            packet_time: section.get::<Duration>("packet_time").map(|time| time.value),
            ..LinkPart::default()
        }
    }

    fn read_table(mut section: Section<'_>) -> LinkPart {
        let (mode, modem) = read_rate_mode(&mut section);
        let part = LinkPart {
            given: ["send", "receive", "delay"].map(|key| section.has(key)),
            send: rate(&mut section, "send"),
            receive: rate(&mut section, "receive"),
            queue: read_queue(&mut section),
            overhead: read_overhead(&mut section),
            rate: mode,
            modem,
            headers: section.word("headers", &HEADERS).map(|h| h.value),
            ..LinkPart::read_common(&mut section)
        };
        section.finish();
        part
    }
}

fn read_delay(section: &mut Section<'_>) -> Option<At<Duration>> {
    let delay = section.get::<Duration>("delay")?;
    if delay.value > MAX_DELAY {
        let message = format!("delay in {} is longer than {MAX_DELAY} one way", section.title());
        section.problems().add(
            Problem::at(delay.span, message)
                .help("a geostationary link has about 270ms; give the time of one direction"),
        );
        return None;
    }
    Some(delay)
}

fn read_queue(section: &mut Section<'_>) -> Option<Queue> {
    let text = section.get::<String>("queue")?;
    if let Ok(time) = text.value.parse::<Duration>() {
        return Some(Queue::Time(time));
    }
    if let Ok(size) = text.value.parse::<ByteCount>() {
        return Some(Queue::Bytes(size));
    }
    let message = format!(
        "queue in {}: \"{}\" is neither a size such as \"64kB\" nor a time such as \"50ms\"",
        section.title(),
        text.value
    );
    let problem = Problem::at(text.span, message);
    section.problems().add(match suggest::fix_unit(&text.value, suggest::SIZES) {
        Some(fixed) => problem.help(format!("did you mean \"{fixed}\"?")),
        None => problem,
    });
    None
}

fn read_overhead(section: &mut Section<'_>) -> Option<Overhead> {
    if section.is_number("overhead") {
        let bytes = section.number("overhead", 0..=256, "bytes")?.value;
        return u16::try_from(bytes).ok().map(Overhead::Bytes);
    }
    let words =
        [("ethernet", Overhead::Ethernet), ("atm", Overhead::Atm), ("hdlc", Overhead::Hdlc)];
    section.word("overhead", &words).map(|word| word.value)
}

/// How often a modem is asked unless `rate_every` says otherwise, and how often it may be.
const EVERY: Duration = Duration::from_secs(1);
const MODEM_TIMES: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(3_600);

fn read_rate_mode(section: &mut Section<'_>) -> (Option<RateMode>, Option<Modem>) {
    let modes = [
        ("fixed", RateMode::Fixed),
        ("reported", RateMode::Reported),
        ("learned", RateMode::Learned),
    ];
    let mode = section.word("rate", &modes).map(|m| m.value);
    let file = section.get::<String>("rate_file");
    let command = section.get::<String>("rate_command");
    let every = section.get::<Duration>("rate_every");
    let title = section.title().to_owned();
    let wrong = |span: &Range<usize>, message: String, help: &str| {
        section.problems().add(Problem::at(span.clone(), message).help(help));
    };
    let place = file.as_ref().or(command.as_ref()).map(|at| &at.span);
    let place = place.or(every.as_ref().map(|at| &at.span));
    if let Some(span) = place.filter(|_| mode != Some(RateMode::Reported)) {
        let message = format!("{title} says where its rate is read, but not that it is reported");
        wrong(
            span,
            message,
            "add rate = \"reported\", or leave rate_file, rate_command and \
             rate_every out",
        );
    }
    if let (Some(_), Some(command)) = (&file, &command) {
        let message = format!("{title} has both rate_file and rate_command");
        wrong(&command.span, message, "leave one of them out");
    }
    if let Some(every) = every.as_ref().filter(|e| !MODEM_TIMES.contains(&e.value)) {
        let message = format!("rate_every in {title} is not between 100ms and 1h");
        wrong(&every.span, message, "leave it out: the modem's rate is then read every second");
    }
    let every = every.map_or(EVERY, |e| e.value);
    let source = file.map(|f| ModemSource::File(f.value.into()));
    let source = source.or(command.map(|c| ModemSource::Command(c.value)));
    (mode, source.map(|source| Modem { source, every }))
}

/// A peer's link, the profile it was built on, and the place later checks point to.
pub(super) struct LinkDraft {
    pub settings: LinkSettings,
    pub profile: Option<&'static str>,
    pub span: Range<usize>,
}

/// Reads `profile`, `end` and `link` of a peer; `None` if they do not make a link.
pub(super) fn read(section: &mut Section<'_>) -> Option<LinkDraft> {
    let profile = read_profile(section);
    let has_profile = section.has("profile");
    let end = section.word("end", &[("hub", End::Hub), ("terminal", End::Terminal)]);
    let title = format!("link of {}", section.title());
    let has_table = section.has("link");
    let table = section.table("link", title);
    let span = table.as_ref().map_or(section.span(), Section::span);
    if !has_profile && !has_table {
        section.lacks(
            "link",
            "add profile = \"t1-geo\", or \
             link = { send = \"2Mbit\", receive = \"20Mbit\", delay = \"300ms\" }",
        );
        return None;
    }
    let title = table.as_ref().map_or(String::new(), |t| t.title().to_owned());
    let on_top = table.map(LinkPart::read_table).unwrap_or_default();
    let base = match &profile {
        Some(profile) => from_profile(section, profile, end.as_ref().map(|e| e.value), &on_top),
        None => LinkPart::default(),
    };
    if has_profile && profile.is_none() {
        return None;
    }
    let mut settings = join(section, base, on_top, &title, span.clone())?;
    settings.end = end.as_ref().map(|e| e.value).filter(|_| profile.is_some());
    Some(LinkDraft { settings, profile: profile.map(|p| p.value.name), span })
}

fn read_profile(section: &mut Section<'_>) -> Option<At<Profile>> {
    let At { value: name, span } = section.get::<String>("profile")?;
    if let Some(profile) = Profile::find(&name) {
        return Some(At { value: profile, span });
    }
    let names = Profile::names();
    let problem = Problem::at(span, format!("there is no link profile \"{name}\""));
    section.problems().add(match suggest::nearest(&name, &names) {
        Some(near) => problem.help(format!("did you mean \"{near}\"?")),
        None => problem.help(format!("there are: {}", names.join(", "))),
    });
    None
}

/// A profile as this node sees it: which rate is whose depends on the end.
fn from_profile(
    section: &Section<'_>,
    profile: &At<Profile>,
    end: Option<End>,
    on_top: &LinkPart,
) -> LinkPart {
    let At { value: profile, span } = profile;
    let rates_given = on_top.send.is_some() && on_top.receive.is_some();
    if end.is_none() && !profile.is_symmetric() && !rates_given {
        section.problems().add(
            Problem::at(
                span.clone(),
                format!(
                    "profile \"{}\" has {} to the terminal and {} from it, and nothing says \
                     which end this node is",
                    profile.name, profile.forward, profile.back
                ),
            )
            .help("add end = \"terminal\" here, and end = \"hub\" in the hub's file"),
        );
    }
    let (send, receive) = match end {
        Some(End::Hub) => (profile.forward, profile.back),
        _ => (profile.back, profile.forward),
    };
    LinkPart {
        send: Some(At { value: send, span: span.clone() }),
        receive: Some(At { value: receive, span: span.clone() }),
        delay: Some(At { value: profile.delay, span: span.clone() }),
        ber: Some(profile.ber),
        loss: Some(profile.loss),
        mtu: Some(profile.mtu),
        packet_time: profile.packet_time,
        ..LinkPart::default()
    }
}

fn join(
    section: &Section<'_>,
    base: LinkPart,
    on_top: LinkPart,
    title: &str,
    span: Range<usize>,
) -> Option<LinkSettings> {
    let send = on_top.send.or(base.send);
    let receive = on_top.receive.or(base.receive);
    let delay = on_top.delay.or(base.delay);
    let (Some(send), Some(receive), Some(delay)) = (&send, &receive, &delay) else {
        let absent = [send.is_none(), receive.is_none(), delay.is_none()];
        let missing: Vec<&str> = ["send", "receive", "delay"]
            .into_iter()
            .zip(absent.iter().zip(on_top.given))
            .filter_map(|(name, (absent, given))| (*absent && !given).then_some(name))
            .collect();
        if missing.is_empty() {
            return None; // what is wrong with those that were given has been said
        }
        let message = format!("{title} lacks {}", missing.join(", "));
        let help = "give all three, or name a profile that has them";
        section.problems().add(Problem::at(span, message).help(help));
        return None;
    };
    let mtu = on_top.mtu.or(base.mtu).unwrap_or(DEFAULT_MTU);
    let slower = send.value.min(receive.value);
    Some(LinkSettings {
        send: send.value,
        receive: receive.value,
        delay: delay.value,
        ber: on_top.ber.or(base.ber).unwrap_or_default(),
        loss: on_top.loss.or(base.loss).unwrap_or_default(),
        mtu: within(mtu, on_top.packet_time.or(base.packet_time), slower),
        queue: on_top.queue.or(base.queue),
        overhead: on_top.overhead.or(base.overhead).unwrap_or_default(),
        rate: on_top.rate.unwrap_or_default(),
        modem: on_top.modem,
        headers: on_top.headers.unwrap_or(true),
        end: None,
    })
}

/// The largest packet that takes no longer than `time` at `rate`; no smaller than packets may be.
fn within(mtu: u16, time: Option<Duration>, rate: BitRate) -> u16 {
    let most = time.map_or(u64::MAX, |time| rate.bytes_in(time).0.max(*MTU.start()));
    u16::try_from(most).map_or(mtu, |most| mtu.min(most))
}

/// A number of bit/s, or a rate with its unit; above 0.
pub fn rate_of(text: &str) -> Option<BitRate> {
    let rate = text.parse::<u64>().ok().map(BitRate::from_bps);
    rate.or_else(|| text.parse().ok()).filter(|r| r.as_bps() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_takes_no_longer_than_its_time_on_the_line_and_is_no_smaller_than_packets_may_be() {
        let time = Some(Duration::from_millis(200));
        assert_eq!(within(1_500, time, BitRate::from_bps(46_080)), 1_152);
        assert_eq!(within(500, time, BitRate::from_bps(46_080)), 500);
        assert_eq!(within(500, time, BitRate::from_bps(1_920)), 128, "48 bytes are no packet");
        assert_eq!(within(500, None, BitRate::from_bps(1_920)), 500);
        assert_eq!(within(9_000, time, BitRate::from_mbps(1_000)), 9_000);
    }

    #[test]
    fn framing_is_counted_as_the_standards_count_it() {
        assert_eq!(Overhead::None.on_the_line(1500), 1500);
        assert_eq!(Overhead::Ethernet.on_the_line(1500), 1538);
        assert_eq!(Overhead::Ethernet.on_the_line(20), 84);
        // 1,500 + 16 bytes are 32 cells.
        assert_eq!(Overhead::Atm.on_the_line(1500), 32 * 53);
        assert_eq!(Overhead::Atm.on_the_line(32), 53);
        assert_eq!(Overhead::Atm.on_the_line(33), 2 * 53);
        assert_eq!(Overhead::Hdlc.on_the_line(100), 108);
    }
}
