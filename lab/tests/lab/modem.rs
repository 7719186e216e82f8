//! The real dialler on real ptys, through the emulated telephone network.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration as StdDuration;

use bentpipe_lab::modem::Modems;
use dial::framing;
use dial::hayes::{Cause, HangUp, Modem, ModemConfig, Output, Told};
use exchange::{CallEnd, ExchangeConfig, Faults, LineConfig};
use os::poll::Clock;
use os::serial::{Got, Serial, Settings};
use units::{BitRate, Duration, Instant, Ratio, Rng};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// A program with a modem, as the gateway's loop has it.
struct Station {
    modem: Modem,
    serial: Option<Serial>,
    path: PathBuf,
    reader: framing::Reader,
    commands: Vec<u8>,
    unsent: Vec<u8>,
    packets: Vec<Vec<u8>>,
    told: Vec<Told>,
}

impl Station {
    fn new(path: &Path, number: &str, answers: bool, now: Instant) -> Station {
        let config = ModemConfig {
            numbers: vec![number.into()],
            answer: answers.then_some(1),
            carrier_detect: false,
            hang_up: HangUp::Escape,
            probation: Duration::from_secs(300),
            ..ModemConfig::default()
        };
        let mut station = Station {
            modem: Modem::new(config),
            serial: None,
            path: path.to_owned(),
            reader: framing::Reader::new(),
            commands: Vec::new(),
            unsent: Vec::new(),
            packets: Vec::new(),
            told: Vec::new(),
        };
        station.plug(now);
        station
    }

    fn plug(&mut self, now: Instant) {
        let settings = Settings { speed: 115_200, hardware_flow: true };
        self.serial = Some(Serial::open(&self.path, settings).expect("the pty"));
        self.modem.handle_open(now);
    }

    fn unplug(&mut self) {
        self.serial = None;
        self.modem.handle_gone();
    }

    fn send(&mut self, packet: &[u8]) {
        framing::write(packet, self.unsent.is_empty(), &mut self.unsent);
    }

    fn turn(&mut self, now: Instant) {
        let Some(serial) = &self.serial else { return self.listen() };
        let mut buf = [0; 512];
        while let Got::Bytes(n) = serial.read(&mut buf) {
            let (reader, packets) = (&mut self.reader, &mut self.packets);
            self.modem.handle_bytes(now, &buf[..n], |data| {
                reader.read(data, |packet| packets.push(packet.to_vec()));
            });
        }
        self.modem.handle_timeout(now);
        self.listen();
        let Some(serial) = &self.serial else { return };
        let online = self.modem.is_online() && self.commands.is_empty();
        for (queue, _) in [(&mut self.commands, true), (&mut self.unsent, online)]
            .into_iter()
            .filter(|(_, may)| *may)
        {
            if let Got::Bytes(n) = serial.write(queue) {
                queue.drain(..n);
            }
        }
    }

    fn listen(&mut self) {
        while let Some(output) = self.modem.poll() {
            match output {
                Output::Send(bytes) => self.commands.extend(bytes),
                // A pty has none.
                Output::Dtr(_) => {}
                Output::Told(told) => self.told.push(told),
            }
        }
    }
}

struct Bench {
    modems: Option<Modems>,
    stations: Vec<Station>,
    clock: Clock,
}

fn network(faults: Faults) -> ExchangeConfig {
    let line = |name: &str, number: &str| LineConfig { name: name.into(), number: number.into() };
    ExchangeConfig {
        lines: vec![line("ship", "100"), line("shore", "200")],
        rate: BitRate::from_bps(57_600),
        delay: Duration::from_millis(50),
        setup: Duration::from_millis(100),
        training: Duration::from_millis(100),
        faults,
        ..ExchangeConfig::default()
    }
}

impl Bench {
    fn new(faults: Faults) -> Bench {
        let modems = Modems::start(network(faults), 3, None).expect("ptys");
        let clock = Clock::start();
        let now = clock.now();
        let paths = modems.paths();
        let stations = vec![
            Station::new(&paths[0], "200", false, now),
            Station::new(&paths[1], "100", true, now),
        ];
        Bench { modems: Some(modems), stations, clock }
    }

    /// Turns both until `done`, however slow the machine.
    fn until(&mut self, what: &str, mut done: impl FnMut(&[Station]) -> bool) {
        let end = self.clock.now() + PATIENCE;
        while !done(&self.stations) {
            let now = self.clock.now();
            for station in &mut self.stations {
                station.turn(now);
            }
            let told: Vec<&[Told]> = self.stations.iter().map(|s| &s.told[..]).collect();
            assert!(now < end, "{what}: {told:?}");
            std::thread::sleep(StdDuration::from_millis(2));
        }
    }

    fn call(&mut self) {
        let now = self.clock.now();
        self.stations[0].modem.dial(now);
        self.until("a call", |s| s.iter().all(|s| s.modem.is_online()));
    }
}

fn heard(told: Told) -> impl FnMut(&[Station]) -> bool {
    move |stations| stations.iter().any(|s| s.told.contains(&told))
}

/// R-MODEM: framed packets cross both ways through noise, and after a call that dropped.
#[test]
fn packets_cross_both_ways_through_noise_and_a_dropped_call() {
    let noise = Faults { noise: Ratio::from_f64(5e-4), burst: 3, ..Faults::default() };
    let mut bench = Bench::new(noise);
    let mut rng = Rng::new(11);
    let packets: Vec<Vec<u8>> = (0..150)
        .map(|n| {
            // Many escapes, and random bytes.
            let mut packet = vec![b'+'; 128];
            if n % 3 > 0 {
                rng.fill(&mut packet);
            }
            packet[..4].copy_from_slice(&u32::to_be_bytes(n));
            packet
        })
        .collect();
    for round in 0..2 {
        bench.call();
        for station in &mut bench.stations {
            station.packets.clear();
            packets.iter().for_each(|p| station.send(p));
        }
        // What noise has spoiled is sent again, as the link does.
        let wanted = |station: &Station| {
            let have: BTreeSet<&Vec<u8>> = station.packets.iter().collect();
            packets.iter().filter(|p| !have.contains(p)).cloned().collect::<Vec<_>>()
        };
        for _ in 0..20 {
            bench.until("an empty queue", |s| s.iter().all(|s| s.unsent.is_empty()));
            let end = bench.clock.now() + Duration::from_millis(500);
            let clock = bench.clock;
            bench.until("what is on its way", |_| clock.now() > end);
            for at in 0..2 {
                let missing = wanted(&bench.stations[1 - at]);
                missing.iter().for_each(|p| bench.stations[at].send(p));
            }
            if bench.stations.iter().all(|s| wanted(s).is_empty()) {
                break;
            }
        }
        for station in &bench.stations {
            assert_eq!(wanted(station), Vec::<Vec<u8>>::new(), "round {round}");
            assert!(station.packets.iter().all(|p| packets.contains(p)), "noise makes no packets");
        }
        let spoiled: u64 = bench.stations.iter().map(|s| s.reader.counts().spoiled).sum();
        assert!(spoiled > 0, "there was noise");
        if round == 0 {
            bench.modems.as_ref().expect("a network").drop_all();
            let ended = |s: &Station| s.told.contains(&Told::Ended(Cause::CarrierLost));
            bench.until("the end of the call", |s| s.iter().all(ended));
            bench.stations.iter_mut().for_each(|s| s.told.clear());
            bench.until("two modems that are ready", |s| {
                s.iter().all(|s| s.told.contains(&Told::Ready))
            });
        }
    }
    let now = bench.clock.now();
    bench.stations[0].modem.hang_up(now);
    bench.until("a call that is hung up", heard(Told::Ended(Cause::HungUp)));
    let modems = bench.modems.take().expect("a network");
    bench.until("the meter's last word", |_| modems.calls().iter().all(|c| c.why != CallEnd::None));
    let calls = modems.stop();
    let ends: Vec<CallEnd> = calls.iter().map(|c| c.why).collect();
    assert_eq!(ends, [CallEnd::Dropped, CallEnd::Caller]);
    assert!(calls.iter().all(|c| c.bytes.iter().all(|b| *b > 150 * 128)), "{calls:?}");
}

#[test]
fn a_modem_that_is_unplugged_in_mid_call_hangs_up_and_calls_again_when_it_is_back() {
    let mut bench = Bench::new(Faults::default());
    bench.call();
    bench.stations[0].unplug();
    bench.until("the far end's notice", heard(Told::Ended(Cause::CarrierLost)));
    bench.until("its own", heard(Told::Ended(Cause::Unplugged)));
    let now = bench.clock.now();
    bench.stations[0].plug(now);
    bench.call();
    let calls = bench.modems.take().expect("a network").stop();
    assert_eq!((calls[0].why, calls.len()), (CallEnd::Caller, 2));
}

#[test]
fn the_modem_that_vanishes_is_told_to_who_holds_its_line() {
    let mut bench = Bench::new(Faults::default());
    bench.call();
    drop(bench.modems.take());
    let mut buf = [0; 64];
    let end = bench.clock.now() + PATIENCE;
    for station in &mut bench.stations {
        let serial = station.serial.as_ref().expect("a line");
        while serial.read(&mut buf) != Got::Gone {
            assert!(bench.clock.now() < end);
        }
        assert_eq!(serial.write(b"x"), Got::Gone);
        station.unplug();
        station.listen();
        assert_eq!(station.told.last(), Some(&Told::Ended(Cause::Unplugged)));
    }
}

/// The program, which ends with its test, however that ends.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_program_makes_lines_that_programs_can_call_over_and_bills_the_call() {
    let dir = std::env::temp_dir().join(format!("bentpipe-modem-{}", std::process::id()));
    let child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--", env!("CARGO_BIN_EXE_bentpipe-lab"), "modem", "--json"])
        .args([
            "--line",
            "ship:100",
            "--line",
            "shore:200",
            "--setup",
            "100ms",
            "--training",
            "1ms",
        ])
        .args(["--delay", "10ms", "--rate", "115200bit", "--dir"])
        .arg(&dir)
        .stdout(Stdio::piped())
        .spawn();
    let mut program = Program(child.expect("setpriv starts (util-linux)"));
    let clock = Clock::start();
    while !dir.join("shore").exists() {
        assert!(clock.now() < Instant::ZERO + PATIENCE, "no lines");
        std::thread::sleep(StdDuration::from_millis(10));
    }
    let now = clock.now();
    let stations = vec![
        Station::new(&dir.join("ship"), "200", false, now),
        Station::new(&dir.join("shore"), "100", true, now),
    ];
    let mut bench = Bench { modems: None, stations, clock };
    bench.call();
    bench.stations[0].send(b"hello");
    bench.until("a packet", |s| s[1].packets == [b"hello"]);
    let now = bench.clock.now();
    bench.stations[0].modem.hang_up(now);
    bench.until("a call that is hung up", heard(Told::Ended(Cause::HungUp)));
    let pid = program.0.id().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().expect("kill").success());
    let mut text = String::new();
    let mut out = program.0.stdout.take().expect("piped");
    std::io::Read::read_to_string(&mut out, &mut text).expect("text");
    assert!(program.0.wait().expect("an end").success());
    let json = text.split_once('[').map(|(_, rest)| format!("[{rest}")).expect("calls");
    let calls: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(calls[0]["end"], "the caller hung up", "{text}");
    assert_eq!(calls[0]["bytes_out"].as_u64().map(|n| n >= 10), Some(true), "{text}");
    assert!(!dir.join("ship").exists(), "its links are gone");
    let _ = std::fs::remove_dir(&dir);
}
