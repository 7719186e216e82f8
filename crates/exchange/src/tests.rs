//! The real dialler on the exchange's lines, in virtual time.

use dial::framing;
use dial::hayes::{Cause, HangUp, Modem, ModemConfig, Output, Told};
use units::{Duration, Instant, Ratio, Rng};

use crate::{CallEnd, Exchange, ExchangeConfig, Faults, LineConfig};

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A program with a modem: what it has sent, heard and been told.
struct Station {
    modem: Modem,
    line: usize,
    reader: framing::Reader,
    unsent: Vec<u8>,
    packets: Vec<Vec<u8>>,
    told: Vec<(Instant, Told)>,
}

struct World {
    exchange: Exchange,
    stations: Vec<Station>,
    now: Instant,
    /// Lines tell carrier (a real device) or not (a pty).
    dcd: bool,
}

fn config(faults: Faults) -> ExchangeConfig {
    let line = |name: &str, number: &str| LineConfig { name: name.into(), number: number.into() };
    ExchangeConfig {
        lines: vec![
            line("ship", "100"),
            line("shore1", "200"),
            line("shore2", "200"),
            line("boat", "101"),
        ],
        faults: Faults { burst: faults.burst.max(1), ..faults },
        ..ExchangeConfig::default()
    }
}

impl World {
    fn new(faults: Faults, dcd: bool, seed: u64) -> World {
        let mut exchange = Exchange::new(config(faults), seed).expect("an exchange");
        let base = ModemConfig {
            carrier_detect: dcd,
            hang_up: if dcd { HangUp::Dtr } else { HangUp::Escape },
            numbers: vec!["200".into()],
            ..ModemConfig::default()
        };
        let stations = (0..4)
            .map(|line| {
                let answer = (line == 1 || line == 2).then_some(1);
                exchange.set_open(Instant::ZERO, line, true);
                Station {
                    modem: Modem::new(ModemConfig { answer, ..base.clone() }),
                    line,
                    reader: framing::Reader::new(),
                    unsent: Vec::new(),
                    packets: Vec::new(),
                    told: Vec::new(),
                }
            })
            .collect();
        let mut world = World { exchange, stations, now: Instant::ZERO, dcd };
        for station in &mut world.stations {
            station.modem.handle_open(world.now);
        }
        world.settle();
        world
    }

    /// Does all that can be done at this moment.
    fn settle(&mut self) {
        let now = self.now;
        loop {
            let mut moved = false;
            for station in &mut self.stations {
                moved |= station.turn(&mut self.exchange, now, self.dcd);
            }
            if !moved {
                return;
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.settle();
        loop {
            let timers = self.stations.iter().filter_map(|s| s.modem.poll_timeout());
            let next = timers.chain(self.exchange.next_time()).min().filter(|at| *at <= end);
            self.now = next.unwrap_or(end).max(self.now);
            self.settle();
            if next.is_none() {
                return;
            }
        }
    }

    fn send(&mut self, station: usize, packet: &[u8]) {
        let unsent = &mut self.stations[station].unsent;
        framing::write(packet, unsent.is_empty(), unsent);
    }
    fn told(&mut self, station: usize) -> Vec<Told> {
        std::mem::take(&mut self.stations[station].told).into_iter().map(|(_, t)| t).collect()
    }
    /// A call from the ship to the shore that stands.
    fn connected(faults: Faults, dcd: bool, seed: u64) -> World {
        let mut world = World::new(faults, dcd, seed);
        world.stations[0].modem.dial(world.now);
        world.pass(seconds(29));
        assert!(world.stations[0].modem.is_online() && world.stations[1].modem.is_online());
        world.stations[1].modem.prove();
        world.told(0);
        world.told(1);
        world
    }
}

impl Station {
    fn turn(&mut self, exchange: &mut Exchange, now: Instant, dcd: bool) -> bool {
        let mut moved = false;
        while let Some(output) = self.modem.poll() {
            moved = true;
            match output {
                Output::Send(bytes) => {
                    assert_eq!(exchange.write(now, self.line, &bytes), bytes.len());
                }
                // A pty has no DTR.
                Output::Dtr(on) if dcd => exchange.set_open(now, self.line, on),
                Output::Dtr(_) => {}
                Output::Told(told) => self.told.push((now, told)),
            }
        }
        if self.modem.is_online() && !self.unsent.is_empty() {
            let taken = exchange.write(now, self.line, &self.unsent);
            self.unsent.drain(..taken);
            moved |= taken > 0;
        }
        let heard = exchange.read(now, self.line, 64);
        if !heard.is_empty() {
            moved = true;
            let (reader, packets) = (&mut self.reader, &mut self.packets);
            self.modem.handle_bytes(now, &heard, |data| {
                reader.read(data, |packet| packets.push(packet.to_vec()));
            });
        }
        if dcd {
            self.modem.handle_carrier(now, exchange.carrier(self.line));
        }
        if self.modem.poll_timeout().is_some_and(|at| at <= now) {
            self.modem.handle_timeout(now);
            moved = true;
        }
        moved
    }
}

fn packets(rng: &mut Rng, n: usize, len: usize) -> Vec<Vec<u8>> {
    let packet = |_| {
        let mut packet = vec![0; len];
        rng.fill(&mut packet);
        packet
    };
    (0..n).map(packet).collect()
}

#[test]
fn a_call_is_set_up_in_its_time_and_carries_ten_bits_a_byte() {
    for dcd in [true, false] {
        let mut world = World::new(Faults::default(), dcd, 1);
        world.stations[0].modem.dial(world.now);
        world.pass(seconds(40));
        let (at, told) = *world.stations[0].told.last().expect("an answer");
        assert!(matches!(told, Told::Connected { incoming: false, .. }), "{told:?}");
        assert_eq!(at.since(Instant::ZERO).as_millis(), 28_280);
        assert!(matches!(
            world.stations[1].told.last(),
            Some((_, Told::Connected { incoming: true, .. }))
        ));
        world.stations[1].modem.prove();
        let sent = packets(&mut Rng::new(5), 10, 236);
        for packet in &sent {
            world.send(0, packet);
        }
        let begin = world.now;
        while world.stations[1].packets.len() < 10 {
            world.pass(Duration::from_millis(10));
        }
        assert_eq!(world.stations[1].packets, sent);
        // 10 frames of 240 bytes and one delimiter more, at 240 bytes a second, and the delay.
        let took = world.now.since(begin).as_millis();
        assert!((11_000..=11_050).contains(&took), "{took} ms");
        let meter = &world.exchange.calls()[0];
        assert_eq!((meter.from, meter.to, meter.bytes), (0, 1, [2_401, 0]));
    }
}

#[test]
fn both_ways_carry_at_once_through_noise_and_only_what_it_touched_is_lost() {
    let noise = Faults { noise: Ratio::from_f64(1e-3), burst: 4, ..Faults::default() };
    let mut world = World::connected(noise, false, 2);
    let sent = packets(&mut Rng::new(6), 300, 120);
    for packet in &sent {
        world.send(0, packet);
        world.send(1, packet);
    }
    world.pass(seconds(200));
    for station in [0, 1] {
        let counts = world.stations[station].reader.counts();
        let arrived = &world.stations[station].packets;
        assert!(arrived.iter().all(|p| sent.contains(p)), "noise makes no packets");
        // A frame of 124 bytes meets a burst in one of eight cases.
        assert!(arrived.len() > 230 && counts.spoiled > 10, "{counts:?}");
    }
}

#[test]
fn a_hunt_group_answers_with_its_free_lines_and_is_busy_when_there_is_none() {
    let mut world = World::new(Faults::default(), false, 3);
    world.stations[0].modem.dial(world.now);
    world.pass(seconds(40));
    world.stations[1].modem.prove();
    world.stations[3].modem.dial(world.now);
    world.pass(seconds(40));
    world.stations[2].modem.prove();
    assert!(world.stations.iter().all(|s| s.modem.is_online()));
    // The second call comes to the second line; a third would be busy.
    let pairs: Vec<(usize, usize)> =
        world.exchange.calls().iter().map(|c| (c.from, c.to)).collect();
    assert_eq!(pairs, [(0, 1), (3, 2)]);
    world.stations[3].modem.hang_up(world.now);
    world.pass(seconds(10));
    assert_eq!(world.told(3).last(), Some(&Told::Ready));
    assert!(world.told(2).contains(&Told::Ended(Cause::CarrierLost)));
    assert_eq!(world.exchange.calls()[1].why, CallEnd::Caller);
    assert!(world.stations[0].modem.is_online(), "the other call is not touched");
}

#[test]
fn what_goes_wrong_has_its_cause() {
    let always = Ratio::ONE;
    for (faults, cause) in [
        (Faults { busy: always, ..Faults::default() }, Cause::Busy),
        (Faults { no_dialtone: always, ..Faults::default() }, Cause::NoDialtone),
        (Faults { no_carrier: always, ..Faults::default() }, Cause::NoCarrier),
    ] {
        let mut world = World::new(faults, false, 4);
        world.stations[0].modem.dial(world.now);
        world.pass(seconds(60));
        assert_eq!(world.told(0).last(), Some(&Told::Failed(cause)));
        assert_eq!(world.exchange.calls(), []);
    }
    let mut world = World::new(Faults::default(), false, 4);
    for line in [1, 2] {
        world.exchange.set_open(world.now, line, false);
    }
    world.stations[0].modem.dial(world.now);
    world.pass(seconds(100));
    assert_eq!(world.told(0).last(), Some(&Told::Failed(Cause::NoAnswer)));
}

#[test]
fn a_call_that_drops_and_one_that_is_hung_up_end_for_both_and_can_be_made_again() {
    for dcd in [true, false] {
        let mut world = World::connected(Faults::default(), dcd, 5);
        world.exchange.drop_all(world.now);
        world.pass(seconds(5));
        for station in [0, 1] {
            assert!(world.told(station).contains(&Told::Ended(Cause::CarrierLost)), "{dcd}");
        }
        world.stations[0].modem.dial(world.now);
        world.pass(seconds(30));
        assert!(world.stations[0].modem.is_online() && world.stations[1].modem.is_online());
        world.stations[0].modem.hang_up(world.now);
        world.pass(seconds(10));
        assert!(world.told(0).contains(&Told::Ended(Cause::HungUp)));
        assert!(world.told(1).contains(&Told::Ended(Cause::CarrierLost)));
    }
}

/// A modem without DTR does not hear that its program was killed: the next one ends the call.
#[test]
fn a_call_that_outlives_its_program_is_ended_by_the_next_one() {
    let mut world = World::connected(Faults::default(), false, 9);
    let config = ModemConfig {
        carrier_detect: false,
        hang_up: HangUp::Escape,
        numbers: vec!["200".into()],
        ..ModemConfig::default()
    };
    world.stations[0].modem = Modem::new(config);
    world.stations[0].modem.handle_open(world.now);
    world.stations[0].modem.dial(world.now);
    world.pass(seconds(8));
    assert_eq!(world.exchange.calls()[0].why, CallEnd::Caller);
    world.pass(seconds(40));
    assert!(world.stations[0].modem.is_online(), "{:?}", world.told(0));
    assert_eq!(world.exchange.calls().len(), 2);
}

/// R-MODEM: `+++` in the data never reaches the modem as an escape.
#[test]
fn packets_of_pluses_do_not_escape_and_pluses_of_a_program_do() {
    let mut world = World::connected(Faults::default(), false, 6);
    world.send(0, &[b'+'; 3]);
    world.pass(seconds(5));
    world.send(0, &[b'+'; 300]);
    world.pass(seconds(5));
    assert!(world.stations[0].modem.is_online());
    assert_eq!(world.stations[1].packets, [vec![b'+'; 3], vec![b'+'; 300]]);
    // What a program without framing would do: without the pause it is data, with it an escape.
    world.exchange.write(world.now, 0, b"ATH\r");
    world.pass(seconds(5));
    assert!(world.exchange.carrier(0), "data is no command");
    world.exchange.write(world.now, 0, b"+++");
    world.pass(seconds(5));
    assert!(world.exchange.carrier(0), "the call goes on behind the escape");
    world.exchange.write(world.now, 0, b"ATH\r");
    assert!(!world.exchange.carrier(0));
}

#[test]
fn a_strangers_call_is_dropped_after_one_handshake_time() {
    let mut world = World::new(Faults::default(), false, 7);
    world.stations[0].modem.dial(world.now);
    world.pass(seconds(29));
    assert!(world.stations[1].modem.is_online());
    world.pass(seconds(35));
    assert!(world.told(1).contains(&Told::Ended(Cause::Stranger)));
    assert_eq!(world.exchange.calls()[0].why, CallEnd::Called);
    assert!(world.told(0).contains(&Told::Ended(Cause::CarrierLost)));
}

#[test]
fn a_thousand_calls_are_metered_and_no_packet_is_invented() {
    let faults = Faults {
        busy: Ratio::from_f64(0.1),
        no_carrier: Ratio::from_f64(0.05),
        drop: Some((Duration::from_millis(10), seconds(60))),
        noise: Ratio::from_f64(1e-3),
        burst: 3,
        ..Faults::default()
    };
    let mut world = World::new(faults, false, 8);
    let sent = packets(&mut Rng::new(9), 4, 60);
    let (mut up, mut ended) = (0, 0);
    for _ in 0..2_000 {
        if up == 1_000 {
            break;
        }
        world.stations[0].modem.dial(world.now);
        for packet in &sent {
            world.send(0, packet);
        }
        world.pass(seconds(45));
        world.stations[0].modem.hang_up(world.now);
        world.pass(seconds(20));
        for told in world.told(0) {
            up += usize::from(matches!(told, Told::Connected { .. }));
            ended += usize::from(matches!(told, Told::Ended(_)));
        }
        world.stations[0].unsent.clear();
    }
    assert_eq!((up, ended), (1_000, 1_000));
    let calls = world.exchange.calls();
    assert_eq!(calls.len(), 1_000);
    assert!(calls.iter().all(|c| c.why != CallEnd::None && c.end >= c.start));
    let arrived: usize = world.stations[1..3].iter().map(|s| s.packets.len()).sum();
    assert!(arrived > 1_000);
    assert!(world.stations[1..3].iter().flat_map(|s| &s.packets).all(|p| sent.contains(p)));
}

#[test]
fn an_exchange_that_cannot_be_is_refused_with_the_mend() {
    let says = |config: ExchangeConfig| match Exchange::new(config, 1) {
        Ok(_) => panic!("it was taken"),
        Err(what) => what,
    };
    assert!(says(ExchangeConfig::default()).contains("give it two or more"));
    let mut twice = config(Faults::default());
    twice.lines[1].name = "ship".into();
    assert!(says(twice).contains("two lines are called \"ship\"; rename one"));
    let mut letters = config(Faults::default());
    letters.lines[1].number = "abc".into();
    assert!(says(letters).contains("write digits only"));
    let drop = Some((seconds(2), seconds(1)));
    assert!(says(config(Faults { drop, ..Faults::default() })).contains("swap them"));
}
