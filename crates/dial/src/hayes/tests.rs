//! A modem that is dialled: its answers, its failures, and numbers tried in turn.

use super::*;
use proptest::prelude::*;

/// A modem and the clock of its test.
struct Bench {
    modem: Modem,
    now: Instant,
    data: Vec<u8>,
    sent: String,
    dtr: bool,
    told: Vec<Told>,
}

/// A command without an answer, the escape between its pauses, and `ATH` without one.
const LOOKS_FOR_A_CALL: Duration = Duration::from_millis(3_000 + 1_200 + 2_400 + 3_000);

fn config() -> ModemConfig {
    ModemConfig {
        init: vec!["ATZ".into(), "ATE0".into()],
        registers: vec![(7, 60)],
        numbers: vec!["100".into(), "200".into()],
        ..ModemConfig::default()
    }
}

impl Bench {
    fn new(config: ModemConfig) -> Bench {
        let mut bench = Bench {
            modem: Modem::new(config),
            now: Instant::ZERO,
            data: Vec::new(),
            sent: String::new(),
            dtr: false,
            told: Vec::new(),
        };
        bench.modem.handle_open(bench.now);
        bench.drain();
        bench
    }
    /// A modem that has said OK to its preparation.
    fn ready(config: ModemConfig) -> Bench {
        let mut bench = Bench::new(config);
        bench.prepare();
        bench
    }
    fn prepare(&mut self) {
        for _ in 0..3 {
            self.says("\r\nOK\r\n");
        }
        assert_eq!(self.told.pop(), Some(Told::Ready));
        self.sent.clear();
    }
    fn online(config: ModemConfig) -> Bench {
        let mut bench = Bench::ready(config);
        bench.modem.dial(bench.now);
        bench.modem.handle_carrier(bench.now, true);
        bench.says("\r\nCONNECT 2400\r\n");
        bench.told.clear();
        bench.sent.clear();
        assert!(bench.modem.is_online());
        bench
    }
    fn drain(&mut self) {
        while let Some(output) = self.modem.poll() {
            match output {
                Output::Send(bytes) => self.sent += &String::from_utf8(bytes).expect("ASCII"),
                Output::Dtr(on) => self.dtr = on,
                Output::Told(told) => self.told.push(told),
            }
        }
    }
    fn says(&mut self, text: &str) {
        self.brings(text.as_bytes());
    }
    fn brings(&mut self, bytes: &[u8]) {
        let data = &mut self.data;
        self.modem.handle_bytes(self.now, bytes, |d| data.extend_from_slice(d));
        self.drain();
    }
    /// Says OK if a command is to be answered that dials nobody.
    fn answers(&mut self) {
        if self.sent.ends_with('\r') && !self.sent.contains("ATDT") || self.sent == "+++" {
            self.sent.clear();
            self.says("\r\nOK\r\n");
        }
    }
    /// The modem answers the escape, after its own pause.
    fn takes_escape(&mut self) {
        assert_eq!(self.sent(), "", "the escape was looked at");
        self.pass(Duration::from_millis(1_000));
        self.says("\r\nOK\r\n");
        self.pass(Duration::from_millis(200));
    }
    /// The escape was sent, and the modem takes it, so that ATH follows.
    fn is_escaped(&mut self) {
        assert_eq!(self.sent(), "+++");
        self.takes_escape();
        assert_eq!(self.sent(), "ATH\r");
    }
    fn carrier(&mut self, there: bool) {
        self.modem.handle_carrier(self.now, there);
        self.drain();
    }
    fn dial(&mut self) {
        self.modem.dial(self.now);
        self.drain();
    }
    fn hang_up(&mut self) {
        self.modem.hang_up(self.now);
        self.drain();
    }
    /// Lets time pass, with all timers.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.modem.poll_timeout().filter(|at| *at <= end) {
            self.now = at;
            self.modem.handle_timeout(at);
            self.drain();
        }
        self.now = end;
    }
    fn sent(&mut self) -> String {
        std::mem::take(&mut self.sent)
    }
    fn told(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.told)
    }
}

#[test]
fn the_modem_is_prepared_step_by_step_before_it_dials() {
    let mut bench = Bench::new(config());
    bench.dial();
    assert!(bench.dtr);
    assert_eq!(bench.sent(), "ATZ\r");
    bench.says("ATZ\r\r\nOK\r\n");
    assert_eq!(bench.sent(), "ATE0\r", "the echo is no answer");
    bench.says("0\r");
    assert_eq!(bench.sent(), "ATS7=60\r");
    bench.says("\r\nOK\r\n");
    assert_eq!(bench.sent(), "ATDT100\r");
    assert_eq!(bench.told(), [Told::Ready, Told::Dialling(0)]);
}

#[test]
fn other_init_strings_hold_from_the_next_call_on_also_while_it_is_prepared() {
    let other = || vec!["ATQ0".to_owned()];
    let mut bench = Bench::new(config());
    assert_eq!(bench.sent(), "ATZ\r");
    bench.modem.change(bench.now, other(), config().numbers, None);
    bench.drain();
    assert_eq!(bench.sent(), "", "it has a command to answer first");
    bench.says("\r\nOK\r\n");
    assert_eq!(bench.sent(), "ATQ0\r");
    bench.says("\r\nOK\r\n\r\nOK\r\n");
    assert_eq!((bench.sent().as_str(), bench.told()), ("ATS7=60\r", vec![Told::Ready]));
    bench.modem.change(bench.now, vec!["ATZ".to_owned()], config().numbers, None);
    bench.drain();
    assert_eq!(bench.sent(), "ATZ\r", "it was ready, and is made so again");
}

#[test]
fn other_numbers_are_dialled_from_the_first_on_also_while_one_of_before_is_tried() {
    for numbers in [vec!["300"], vec!["300", "400", "500"]] {
        let mut bench = Bench::ready(config());
        bench.dial();
        assert_eq!(bench.sent(), "ATDT100\r");
        let numbers: Vec<String> = numbers.into_iter().map(str::to_owned).collect();
        bench.modem.change(bench.now, config().init, numbers.clone(), None);
        bench.drain();
        for number in numbers {
            bench.says("\r\nBUSY\r\n");
            bench.pass(Duration::from_secs(6));
            assert_eq!(bench.sent(), format!("ATDT{number}\r"));
        }
    }
}

#[test]
fn a_shorter_list_may_come_while_the_last_number_of_a_longer_one_is_next() {
    for numbers in [vec!["300".to_owned()], vec![]] {
        let mut bench = Bench::ready(config());
        bench.dial();
        bench.says("\r\nBUSY\r\n");
        bench.modem.change(bench.now, config().init, numbers.clone(), None);
        bench.drain();
        bench.sent();
        bench.pass(Duration::from_secs(6));
        match numbers.first() {
            Some(number) => assert_eq!(bench.sent(), format!("ATDT{number}\r")),
            None => assert_eq!(bench.told().last(), Some(&Told::Failed(Cause::Refused))),
        }
    }
}

#[test]
fn what_follows_connect_is_data_and_not_a_byte_before() {
    let mut bench = Bench::ready(config());
    bench.dial();
    bench.says("\r\nRINGING\r\n\r\nCONNECT 2400\r\n+hello+");
    assert_eq!(bench.data, b"+hello+");
    let rate = Some(BitRate::from_bps(2_400));
    assert_eq!(bench.told(), [Told::Dialling(0), Told::Connected { rate, incoming: false }]);
    bench.brings(b"\nNO CARRIER\r\n");
    assert_eq!(bench.data, b"+hello+\nNO CARRIER\r\n", "words in data are data");
    assert!(bench.modem.is_online());
}

#[test]
fn each_failure_has_its_cause_and_the_next_number_is_tried() {
    for (said, cause) in [
        ("NO CARRIER", Cause::NoCarrier),
        ("BUSY", Cause::Busy),
        ("NO ANSWER", Cause::NoAnswer),
        ("DELAYED", Cause::Delayed),
    ] {
        let mut bench = Bench::ready(config());
        bench.dial();
        bench.says(&format!("\r\n{said}\r\n"));
        assert_eq!(bench.told(), [Told::Dialling(0)], "{said}: another number is left");
        bench.pass(Duration::from_secs(6));
        assert_eq!(bench.sent(), "ATDT100\rATDT200\r");
        bench.says(&format!("\r\n{said}\r\n"));
        assert_eq!(bench.told(), [Told::Dialling(1), Told::Failed(cause)]);
        bench.pass(Duration::from_secs(600));
        assert_eq!(bench.sent(), "", "when to dial again is not the modem's matter");
    }
}

#[test]
fn no_dial_tone_and_a_refused_command_end_the_list_at_once() {
    for (said, cause) in [
        ("NO DIALTONE", Cause::NoDialtone),
        ("NO DIAL TONE", Cause::NoDialtone),
        ("ERROR", Cause::Refused),
    ] {
        let mut bench = Bench::ready(config());
        bench.dial();
        bench.says(&format!("\r\n{said}\r\n"));
        assert_eq!(bench.told(), [Told::Dialling(0), Told::Failed(cause)]);
    }
}

#[test]
fn the_list_is_gone_through_as_often_as_it_says_with_longer_pauses() {
    let mut bench = Bench::ready(ModemConfig { rounds: 2, ..config() });
    bench.dial();
    let mut waits = Vec::new();
    while !bench.told().contains(&Told::Failed(Cause::Busy)) {
        bench.says("\r\nBUSY\r\n");
        waits.extend(bench.modem.poll_timeout().map(|at| at.since(bench.now).as_millis()));
        bench.pass(Duration::from_secs(10));
    }
    assert_eq!(bench.sent(), "ATDT100\rATDT200\rATDT100\rATDT200\r");
    assert_eq!(waits, [5_000, 10_000, 10_000]);
}

#[test]
fn a_dialling_without_a_result_is_given_up() {
    let mut bench = Bench::ready(ModemConfig { numbers: vec!["1".into()], ..config() });
    bench.dial();
    bench.pass(Duration::from_secs(91));
    assert_eq!(bench.told(), [Told::Dialling(0), Told::Failed(Cause::Timeout)]);
    assert_eq!(bench.sent(), "ATDT1\r\rATZ\r", "any byte ends a dialling");
    bench.prepare();
    assert!(!bench.modem.may_be_in_call());
}

#[test]
fn a_call_of_which_no_result_was_heard_is_hung_up_before_the_next_number() {
    let escape = ModemConfig { hang_up: HangUp::Escape, carrier_detect: false, ..config() };
    for (config, carrier) in [(escape, false), (config(), false), (config(), true)] {
        let numbers = vec!["1".into(), "2".into()];
        let mut bench = Bench::ready(ModemConfig { numbers, rounds: 1, ..config });
        bench.dial();
        bench.brings(b"\0CONNECT 9600\r\n~~~");
        bench.carrier(carrier);
        bench.pass(Duration::from_secs(91));
        assert_eq!(bench.told(), [Told::Dialling(0)]);
        assert_eq!(bench.sent(), "ATDT1\r\rATZ\r", "the modem takes it for data");
        assert!(bench.modem.may_be_in_call());
        if carrier {
            bench.pass(Duration::from_millis(2_100));
            assert!(!bench.dtr);
            bench.pass(DTR_AWAY);
            bench.carrier(false);
        } else {
            bench.pass(Duration::from_millis(3_300));
            bench.is_escaped();
            bench.says("\r\nOK\r\n");
        }
        assert_eq!((bench.sent(), bench.told()), ("ATZ\r".into(), vec![]));
        for _ in 0..3 {
            bench.says("\r\nOK\r\n");
        }
        bench.pass(Duration::from_secs(5));
        assert_eq!(bench.told(), [Told::Ready, Told::Dialling(1)]);
    }
    // A dialling that is broken off leaves no call either.
    let mut bench = Bench::ready(config());
    bench.dial();
    bench.hang_up();
    bench.told();
    bench.pass(LOOKS_FOR_A_CALL);
    assert_eq!(bench.sent(), "ATDT100\r\rATZ\r+++ATH\rATZ\r");
}

#[test]
fn the_far_end_cannot_answer_the_escape_for_the_modem() {
    let config = ModemConfig { hang_up: HangUp::Escape, carrier_detect: false, ..config() };
    let mut bench = Bench::online(config);
    bench.hang_up();
    bench.pass(Duration::from_millis(1_200));
    assert_eq!(bench.sent(), "+++");
    for _ in 0..11 {
        bench.says("\r\nOK\r\n");
        bench.pass(Duration::from_millis(100));
        assert_eq!(
            bench.sent(),
            "",
            "the modem would take ATH for data, and the pause would be none"
        );
    }
    bench.pass(Duration::from_millis(100));
    assert_eq!(bench.sent(), "ATH\r");
}

#[test]
fn a_call_that_the_escape_did_not_end_is_looked_for_again_and_may_still_be_there() {
    let config = ModemConfig {
        hang_up: HangUp::Escape,
        carrier_detect: false,
        numbers: vec!["1".into()],
        ..config()
    };
    let mut bench = Bench::ready(config);
    bench.dial();
    bench.pass(Duration::from_secs(90) + LOOKS_FOR_A_CALL + Duration::from_secs(9));
    assert_eq!(bench.told().last(), Some(&Told::Trouble(Cause::Silent)));
    assert!(bench.modem.may_be_in_call());
    bench.sent();
    bench.pass(Duration::from_secs(5 + 3) + Duration::from_millis(1_200));
    assert_eq!(bench.sent(), "ATZ\r+++");
    bench.takes_escape();
    bench.says("\r\nOK\r\n");
    bench.prepare();
    assert!(!bench.modem.may_be_in_call());
    // A modem that refuses a command takes commands.
    let mut bench =
        Bench::ready(ModemConfig { numbers: vec!["1".into()], ..ModemConfig::default() });
    bench.dial();
    bench.pass(Duration::from_secs(91));
    bench.says("\r\nERROR\r\n");
    assert!(!bench.modem.may_be_in_call());
}

#[test]
fn a_silent_modem_and_one_that_talks_nonsense_are_told_apart_and_tried_again() {
    for (said, cause) in [("", Cause::Silent), ("\r\n~x\u{1}}\r\n", Cause::Garbage)] {
        let mut bench = Bench::new(config());
        bench.dial();
        // First a call is looked for that may have been left.
        bench.pass(LOOKS_FOR_A_CALL);
        assert_eq!(bench.sent(), "ATZ\r+++ATH\rATZ\r");
        bench.says(said);
        bench.pass(Duration::from_secs(9));
        assert_eq!(bench.sent(), "\rATZ\r\rATZ\r");
        assert_eq!(bench.told(), [Told::Failed(cause)]);
        // Back-off: 5, 10, 20 … s of rest, each after three tries of 3 s.
        bench.pass(Duration::from_secs(5 + 9 + 10 + 9));
        assert_eq!(bench.told(), [Told::Trouble(Cause::Silent), Told::Trouble(Cause::Silent)]);
        bench.sent();
        // Somebody wants to call: no rest now.
        bench.dial();
        assert_eq!(bench.sent(), "ATZ\r");
        for _ in 0..3 {
            bench.says("\r\nOK\r\n");
        }
        assert_eq!(bench.told(), [Told::Ready, Told::Dialling(0)]);
    }
}

#[test]
fn a_call_that_a_killed_program_left_is_hung_up_before_anything_else() {
    // A line that cannot tell carrier; one whose driver says that it can, with a cable of three
    // wires; and a modem that ignores DTR.
    let escape = ModemConfig { hang_up: HangUp::Escape, carrier_detect: false, ..config() };
    for (config, carrier) in [(escape, false), (config(), false), (config(), true)] {
        let mut bench = Bench::new(config.clone());
        bench.carrier(carrier);
        bench.dial();
        bench.pass(Duration::from_secs(3));
        assert_eq!(bench.sent(), "ATZ\r", "the modem takes it for data");
        bench.pass(Duration::from_millis(1_200));
        bench.is_escaped();
        bench.carrier(false);
        if !carrier {
            bench.says("\r\nOK\r\n");
        }
        assert_eq!((bench.sent(), bench.told()), ("ATZ\r".into(), vec![]), "it is nobody's call");
        for _ in 0..3 {
            bench.says("\r\nOK\r\n");
        }
        assert_eq!(bench.told(), [Told::Ready, Told::Dialling(0)]);

        // A modem that is switched off says nothing to that either, and has the tries of any.
        let mut bench = Bench::new(config);
        bench.pass(LOOKS_FOR_A_CALL);
        assert_eq!((bench.sent(), bench.told()), ("ATZ\r+++ATH\rATZ\r".into(), vec![]));
        bench.pass(Duration::from_secs(9));
        assert_eq!(bench.told(), [Told::Trouble(Cause::Silent)]);
    }
}

/// Data of 2,000 bytes between two pauses read as "NO CARRIER" in digits once in a thousand calls.
#[test]
fn a_call_whose_last_data_read_as_the_modems_answer_is_hung_up_all_the_same() {
    let config = ModemConfig { hang_up: HangUp::Escape, carrier_detect: false, ..config() };
    let mut bench = Bench::online(config);
    bench.hang_up();
    bench.brings(b"\x81far\r\xb3\rdata");
    assert_eq!(bench.told(), [Told::Ended(Cause::HungUp)], "as it seems");
    bench.dial();
    assert_eq!(bench.sent(), "ATZ\r", "the modem takes it for data");
    bench.brings(b"more\rdata\r");
    bench.pass(Duration::from_secs(3) + Duration::from_millis(1_200));
    bench.is_escaped();
    bench.says("\r\nOK\r\n");
    assert_eq!((bench.sent(), bench.told()), ("ATZ\r".into(), vec![]));
    for _ in 0..3 {
        bench.says("\r\nOK\r\n");
    }
    assert_eq!(bench.told(), [Told::Ready, Told::Dialling(0)]);
}

#[test]
fn a_lost_carrier_ends_the_call_and_the_modem_is_prepared_anew() {
    let mut bench = Bench::online(config());
    bench.carrier(false);
    assert_eq!(bench.told(), [Told::Ended(Cause::CarrierLost)]);
    assert_eq!(bench.sent(), "ATZ\r");
    bench.says("\r\nNO CARRIER\r\n");
    assert_eq!(bench.told(), [], "the modem's own words come late and change nothing");
    bench.prepare();
}

#[test]
fn a_line_without_carrier_detect_hears_the_modem_say_it() {
    let mut bench = Bench::online(ModemConfig { carrier_detect: false, ..config() });
    bench.carrier(false);
    assert!(bench.modem.is_online(), "what the line cannot tell is not believed");
    bench.brings(b"data\r\nNO CARR");
    bench.brings(b"IER\r\n\r\nOK\r\n");
    assert_eq!(bench.told(), [Told::Ended(Cause::CarrierLost)]);
    assert!(bench.data.starts_with(b"data"));
    assert_eq!(bench.sent(), "ATZ\rATE0\r", "what follows is the modem's again");
}

#[test]
fn dtr_hangs_up_and_the_escape_is_tried_where_the_carrier_stays() {
    let mut bench = Bench::online(config());
    bench.hang_up();
    assert!(!bench.dtr);
    bench.pass(Duration::from_millis(600));
    assert!(bench.dtr);
    bench.carrier(false);
    assert_eq!(bench.told(), [Told::Ended(Cause::HungUp)]);

    let mut bench = Bench::online(config());
    bench.hang_up();
    bench.pass(Duration::from_secs(4));
    assert_eq!((bench.sent(), bench.told()), (String::new(), vec![]));
    bench.pass(Duration::from_secs(8));
    assert_eq!(bench.sent(), "++++++ATH\r", "also where the modem does not say OK to the escape");
    bench.carrier(false);
    assert_eq!(bench.told(), [Told::Ended(Cause::HungUp)]);
}

/// A cable of three wires: the driver has DTR and DCD, and nothing is connected to them.
#[test]
fn where_no_carrier_was_ever_seen_the_modem_says_that_the_call_is_over() {
    let mut bench = Bench::ready(config());
    bench.dial();
    bench.says("\r\nCONNECT 2400\r\n");
    bench.told.clear();
    bench.sent.clear();
    bench.hang_up();
    bench.pass(DTR_AWAY);
    assert_eq!((&bench.sent[..], &bench.told[..]), ("ATH\r", &[][..]), "the call goes on");
    // It is in the call, and takes this for data; the escape ends it.
    while !bench.sent.ends_with("+++") {
        bench.pass(Duration::from_millis(100));
        assert_eq!(bench.told, []);
    }
    bench.sent.clear();
    bench.takes_escape();
    assert_eq!(bench.sent, "ATH\r");
    assert_eq!(bench.told, []);
    bench.says("\r\nOK\r\n");
    assert_eq!(bench.told, [Told::Ended(Cause::HungUp)]);
    // A far end that hangs up is told of in the data.
    bench.prepare();
    bench.dial();
    bench.says("\r\nCONNECT 2400\r\n");
    bench.says("data\r\nNO CARRIER\r\n");
    assert_eq!(bench.told.pop(), Some(Told::Ended(Cause::CarrierLost)));
}

#[test]
fn a_call_that_is_answered_while_it_is_broken_off_is_told_and_hung_up() {
    for rests in [false, true] {
        let mut bench = Bench::ready(config());
        bench.dial();
        bench.hang_up();
        assert_eq!(bench.told.pop(), Some(Told::Failed(Cause::HungUp)));
        if rests {
            bench.pass(Duration::from_secs(60));
        }
        bench.told.clear();
        bench.carrier(true);
        bench.says("\r\nCONNECT 2400\r\n");
        let rate = Some(BitRate::from_bps(2_400));
        assert_eq!(bench.told, [Told::Connected { rate, incoming: false }]);
        assert!(!bench.dtr);
        bench.pass(DTR_AWAY);
        bench.carrier(false);
        assert_eq!(bench.told.get(1), Some(&Told::Ended(Cause::HungUp)));
    }
}

#[test]
fn a_carrier_that_nothing_ends_is_told_and_tried_for_ever() {
    let mut bench = Bench::online(config());
    bench.hang_up();
    bench.pass(Duration::from_secs(14));
    assert_eq!(bench.told(), [Told::Trouble(Cause::Stuck)]);
    bench.pass(Duration::from_secs(45));
    assert_eq!(bench.told(), [Told::Trouble(Cause::Stuck)]);
    bench.dial();
    assert_eq!(bench.told(), [], "no second call over a stuck one");
    bench.pass(Duration::from_secs(120));
    bench.carrier(false);
    assert!(bench.told().contains(&Told::Ended(Cause::HungUp)));
}

#[test]
fn the_escape_has_silence_on_both_sides() {
    let mut bench =
        Bench::online(ModemConfig { hang_up: HangUp::Escape, carrier_detect: false, ..config() });
    bench.hang_up();
    assert!(!bench.modem.is_online(), "nothing more is sent as data");
    bench.pass(Duration::from_millis(1_100));
    assert_eq!(bench.sent(), "");
    bench.pass(Duration::from_millis(200));
    assert_eq!(bench.sent(), "+++");
    bench.says("late data \r\n");
    bench.takes_escape();
    assert_eq!(bench.sent(), "ATH\r");
    bench.says("\r\nOK\r\n");
    assert_eq!(bench.told(), [Told::Ended(Cause::HungUp)]);
}

/// A modem that still sends what it was given sees no pause, and takes no escape.
#[test]
fn an_escape_that_failed_is_tried_again_and_no_call_is_said_to_be_over_without_a_sign() {
    for hang_up in [HangUp::Escape, HangUp::Dtr] {
        let config = ModemConfig { hang_up, carrier_detect: false, ..config() };
        let mut bench = Bench::online(config.clone());
        bench.hang_up();
        bench.pass(Duration::from_secs(20));
        assert_eq!(bench.told(), [Told::Trouble(Cause::Stuck)], "{hang_up:?}");
        let mut bench = Bench::online(config);
        bench.hang_up();
        while !bench.sent().ends_with("+++") {
            bench.pass(Duration::from_millis(100));
        }
        bench.pass(Duration::from_secs(3));
        assert_eq!(bench.sent(), "", "the second pause");
        bench.pass(Duration::from_secs(1));
        bench.is_escaped();
        bench.says("\r\nOK\r\n");
        assert_eq!(bench.told(), [Told::Ended(Cause::HungUp)]);
    }
}

#[test]
fn a_dialling_can_be_broken_off_at_any_time() {
    let mut bench = Bench::ready(config());
    bench.dial();
    bench.hang_up();
    assert_eq!(bench.told(), [Told::Dialling(0), Told::Failed(Cause::HungUp)]);
    assert_eq!(bench.sent(), "ATDT100\r\rATZ\r");
    bench.says("\r\nNO CARRIER\r\n");
    bench.prepare();
    bench.dial();
    bench.says("\r\nBUSY\r\n");
    bench.told();
    bench.hang_up();
    assert_eq!(bench.told(), [Told::Failed(Cause::HungUp)]);
    let mut unprepared = Bench::new(config());
    unprepared.dial();
    unprepared.hang_up();
    assert_eq!(unprepared.told(), [Told::Failed(Cause::HungUp)]);
    unprepared.prepare();
    assert_eq!(unprepared.sent(), "");
}

fn answering() -> Bench {
    Bench::ready(ModemConfig { answer: Some(2), ..config() })
}

#[test]
fn a_call_is_answered_after_its_rings_if_at_all() {
    let mut bench = Bench::ready(config());
    bench.says("\r\nRING\r\n\r\nRING\r\n\r\nRING\r\n");
    assert_eq!(bench.sent(), "", "this node calls only");
    let mut bench = answering();
    bench.says("\r\nRING\r\n");
    bench.pass(Duration::from_secs(20));
    bench.says("\r\nRING\r\n");
    assert_eq!(bench.sent(), "", "two calls that rang once each");
    bench.pass(Duration::from_secs(5));
    bench.says("\r\nRING\r\n");
    assert_eq!(bench.sent(), "ATA\r");
    bench.says("\r\nNO CARRIER\r\n");
    assert_eq!(bench.told(), [Told::Failed(Cause::NoCarrier)]);
}

#[test]
fn a_strangers_call_is_dropped_and_a_peers_stays() {
    for proves in [false, true] {
        let mut bench = answering();
        bench.says("\r\nRING\r\n\r\nRING\r\n\r\nCONNECT\r\n");
        bench.carrier(true);
        assert_eq!(bench.told(), [Told::Connected { rate: None, incoming: true }]);
        if proves {
            bench.modem.prove();
        }
        bench.pass(Duration::from_millis(30_100));
        assert_eq!(bench.dtr, proves);
        bench.carrier(false);
        let cause = if proves { Cause::CarrierLost } else { Cause::Stranger };
        bench.pass(Duration::from_secs(1));
        assert!(bench.told().contains(&Told::Ended(cause)));
    }
}

#[test]
fn a_device_that_goes_is_told_in_every_state_and_comes_back() {
    let mut bench = Bench::online(config());
    bench.modem.handle_gone();
    bench.drain();
    assert_eq!(bench.told(), [Told::Ended(Cause::Unplugged)]);
    bench.dial();
    assert_eq!(bench.told(), [Told::Failed(Cause::Unplugged)]);
    bench.modem.handle_open(bench.now);
    bench.drain();
    bench.sent.clear();
    bench.dial();
    bench.modem.handle_gone();
    bench.drain();
    assert_eq!(bench.told(), [Told::Failed(Cause::Unplugged)]);
    bench.modem.handle_gone();
    bench.drain();
    assert_eq!(bench.told(), []);
}

proptest! {
    /// Garbage, silence and anything else: the modem neither panics nor stays where it is.
    #[test]
    fn whatever_the_line_brings_the_modem_can_dial_afterwards(
        steps in proptest::collection::vec((0_u8..9, 0_u64..40_000, any::<Vec<u8>>()), 0..60),
        carrier_detect: bool,
    ) {
        const WORDS: [&str; 9] = ["OK", "CONNECT 2400", "NO CARRIER", "RING", "BUSY", "ERROR",
            "NO DIALTONE", "NO ANSWER", "AT"];
        let mut bench = Bench::new(ModemConfig { carrier_detect, answer: Some(1), ..config() });
        for (what, time, bytes) in steps {
            match what {
                0 => bench.dial(),
                1 => bench.hang_up(),
                2 => bench.carrier(time % 2 == 0),
                3 => bench.brings(&bytes),
                4 => bench.modem.prove(),
                _ => bench.says(&format!("\r\n{}\r\n", WORDS[time as usize % 9])),
            }
            bench.pass(Duration::from_millis(time));
        }
        // Now everything works: whatever is under way ends, and a call can be made.
        bench.hang_up();
        bench.carrier(false);
        bench.pass(Duration::from_secs(400));
        bench.carrier(true);
        bench.carrier(false);
        // It answers each command. A call of which it never told may be hung up only now.
        for _ in 0..100 {
            bench.answers();
            bench.pass(Duration::from_secs(1));
        }
        bench.dial();
        for _ in 0..8 {
            bench.answers();
        }
        prop_assert!(bench.sent.contains("ATDT100\r"), "{:?}", bench.modem);
    }
}
