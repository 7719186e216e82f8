//! Who pays for a line: prices divided by bytes, and ledgers read back.

use super::*;
use proptest::prelude::*;

/// Monday, 23 November 2026, 12:00.
const NOON: Wall = Wall(1_795_392_000 + 43_200);

fn money(text: &str) -> Money {
    text.parse().expect("an amount")
}
fn usd() -> Currency {
    "USD".parse().expect("a currency")
}
fn name(text: &str) -> Name {
    text.into()
}
fn account(host: &str, class: &str) -> Account {
    Account { host: host.parse().expect("a host"), class: class.into(), service: "".into() }
}
fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}
fn ledger(books: &mut Books) -> String {
    std::iter::from_fn(|| books.poll_record()).collect()
}
fn start(books: &mut Books, carrier: &str) -> SessionId {
    let raised = account("10.2.0.7", "interactive");
    books.start(NOON, &name("shore"), &name(carrier), usd(), raised)
}
/// Two sessions: one that is over, and one in mid-call.
fn example() -> (Books, String) {
    let mut books = Books::new();
    let call = start(&mut books, "inmarsat");
    books.traffic(call, &account("10.2.0.7", "interactive"), 100, 200);
    books.traffic(call, &account("10.2.0.8", "bulk"), 0, 600);
    books.mark(call, seconds(1), money("3.00"));
    books.end(call, seconds(90), money("6.01"), "idle");
    let call = start(&mut books, "iridium");
    books.mark(call, Duration::ZERO, money("1.50"));
    books.traffic(call, &account("10.2.0.8", "bulk"), 50, 50);
    books.mark(call, seconds(61), money("3.00"));
    let text = ledger(&mut books);
    (books, text)
}
/// Name and price of each line.
fn prices(books: &Books, by: By) -> Vec<(String, String)> {
    let lines = books.query(&Query::all(by));
    lines.into_iter().map(|l| (l.name, l.sums.price.to_string())).collect()
}
fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

#[test]
fn a_price_is_divided_by_bytes_and_its_parts_make_the_whole() {
    let (books, _) = example();
    assert_eq!(
        prices(&books, By::Host),
        pairs(&[("10.2.0.7", "2.003333"), ("10.2.0.8", "7.006667")])
    );
    assert_eq!(prices(&books, By::Carrier), pairs(&[("inmarsat", "6.01"), ("iridium", "3.00")]));
    assert_eq!(prices(&books, By::Day), pairs(&[("2026-11-23", "9.01")]));
    assert_eq!(
        prices(&books, By::Class),
        pairs(&[("bulk", "7.006667"), ("interactive", "2.003333")])
    );
    assert_eq!(books.spent_on(NOON, usd(), &name("shore")), money("9.01"));
    let host = account("10.2.0.7", "").host;
    assert_eq!(books.spent_by(NOON, usd(), host), money("2.003333"));
    assert_eq!(books.bytes_on(NOON, &name("shore"), &name("inmarsat")), ByteCount(900));
}

#[test]
fn a_session_without_bytes_is_paid_by_who_raised_it() {
    let mut books = Books::new();
    let call = start(&mut books, "inmarsat");
    books.end(call, seconds(3), money("3"), "carrier lost");
    assert_eq!(prices(&books, By::Host), pairs(&[("10.2.0.7", "3.00")]));
}

#[test]
fn a_ledger_says_what_the_books_said_and_ends_what_had_no_end() {
    let (books, text) = example();
    let mut replay = Books::replay(text.as_bytes());
    assert_eq!((replay.damaged, replay.valid, replay.broken.len()), (0, text.len(), 1));
    for by in [By::Host, By::Class, By::Carrier, By::Peer, By::Day, By::Month, By::Service] {
        assert_eq!(replay.books.query(&Query::all(by)), books.query(&Query::all(by)));
    }
    let end = ledger(&mut replay.books);
    assert!(end.ends_with("end 1 61000 3.00 the%20node%20stopped\n"), "{end}");
    // With the end written, nothing is broken the next time.
    assert!(Books::replay((text + &end).as_bytes()).broken.is_empty());
}

#[test]
fn a_torn_line_is_cut_off_and_a_damaged_one_is_skipped_and_counted() {
    let (_, text) = example();
    let torn = &text[..text.len() - 7];
    let replay = Books::replay(torn.as_bytes());
    let whole = torn.rfind('\n').expect("more than one line") + 1;
    assert_eq!((replay.valid, replay.damaged), (whole, 0));
    let replay = Books::replay(text.replacen("usage", "usagf", 1).as_bytes());
    assert_eq!((replay.valid, replay.damaged), (text.len(), 1));
    assert_eq!(Books::replay(&[0xff; 100]).valid, 0);
}

#[test]
fn a_month_has_its_fee_once() {
    let mut books = Books::new();
    for _ in 0..3 {
        books.fee(NOON, &name("shore"), &name("vsat"), usd(), money("99"));
    }
    assert_eq!(books.spent_on(NOON, usd(), &name("shore")), money("99"));
    assert_eq!(prices(&books, By::Host), pairs(&[("monthly fee", "99.00")]));
    assert_eq!(prices(&books, By::Month), pairs(&[("2026-11", "99.00")]));
    let text = ledger(&mut books);
    let mut replayed = Books::replay(text.as_bytes()).books;
    replayed.fee(NOON, &name("shore"), &name("vsat"), usd(), money("99"));
    assert_eq!(replayed.spent_on(NOON, usd(), &name("shore")), money("99"));
}

#[test]
fn a_question_may_be_about_some_days_and_one_peer() {
    let (mut books, _) = example();
    let later = Wall(NOON.0 + 3 * 86_400);
    let call = books.start(later, &name("other"), &name("lte"), usd(), account("node", "bulk"));
    books.end(call, seconds(1), money("1"), "idle");
    let ask = |peer: Option<&str>, from: Option<Day>| {
        let query = Query { peer: peer.map(Into::into), from, ..Query::all(By::Peer) };
        books.query(&query).into_iter().map(|l| l.name).collect::<Vec<_>>()
    };
    assert_eq!(ask(None, None), ["other", "shore"]);
    assert_eq!(ask(Some("shore"), None), ["shore"]);
    assert_eq!(ask(None, Some(later.day())), ["other"]);
}

#[test]
fn the_answer_is_csv_that_programs_read() {
    let mut books = Books::new();
    let call =
        books.start(NOON, &name("the \"shore\", east"), &name("x"), usd(), account("node", ""));
    books.traffic(call, &account("node", ""), 10, 20);
    books.end(call, Duration::from_millis(90_500), money("2.5"), "idle");
    let query = Query::all(By::Peer);
    assert_eq!(
        csv(&query, &books.query(&query)),
        "peer,calls,connect_seconds,sent_bytes,received_bytes,price,currency\r\n\
         \"the \"\"shore\"\", east\",1,90.500,10,20,2.50,USD\r\n"
    );
}

#[test]
fn the_books_stay_bounded_and_lose_no_money() {
    let mut books = Books::new();
    let all = 60_000;
    for n in 0..all {
        let host = Host::Addr(std::net::Ipv4Addr::from_bits(n as u32).into());
        let raised = Account { host, class: "".into(), service: "".into() };
        let at = Wall(NOON.0 + n / 100 * 86_400);
        let call = books.start(at, &name("shore"), &name("x"), usd(), raised);
        books.end(call, seconds(1), money("0.01"), "idle");
        books.out.clear();
    }
    assert!(books.cells.len() <= MAX_CELLS);
    let total: Money = books.query(&Query::all(By::Peer)).iter().map(|l| l.sums.price).sum();
    assert_eq!(total, Money::from_cents(all));
    let call = start(&mut books, "inmarsat");
    for n in 0..1_000_u32 {
        let host = Host::Addr(std::net::Ipv4Addr::from_bits(n).into());
        books.traffic(call, &Account { host, class: "".into(), service: "".into() }, 1, 0);
    }
    assert!(books.open[&call].by.len() <= MAX_ACCOUNTS + 1);
    assert_eq!(books.session(call).map(|s| s.sent), Some(1_000));
}

#[test]
fn a_line_is_written_when_the_price_changes_and_once_a_minute() {
    let mut books = Books::new();
    let call = start(&mut books, "inmarsat");
    ledger(&mut books);
    // The first step is paid at once.
    assert_eq!(books.mark(call, Duration::ZERO, money("3")), seconds(60));
    assert_eq!(ledger(&mut books).lines().count(), 1);
    books.traffic(call, &account("node", ""), 1, 1);
    assert_eq!(books.mark(call, seconds(10), money("3")), seconds(60));
    assert_eq!(ledger(&mut books), "");
    books.mark(call, seconds(60), money("3"));
    assert_eq!(ledger(&mut books).lines().count(), 2, "what crossed, and the mark");
    assert_eq!(books.mark(call, Duration::from_millis(60_100), money("6")), seconds(61));
    assert_eq!(ledger(&mut books), "");
    books.mark(call, seconds(61), money("6"));
    assert_eq!(ledger(&mut books).lines().count(), 1);
}

proptest! {
    #[test]
    fn no_ledger_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        Books::replay(&bytes);
    }

    #[test]
    fn a_ledger_cut_anywhere_or_compacted_anywhere_keeps_its_sums(
        steps in proptest::collection::vec((0_u8..6, 0_u64..5, 0_u64..100_000), 1..60),
        cut: prop::sample::Index,
    ) {
        let (mut books, mut file) = (Books::new(), Vec::new());
        let mut calls: Vec<(SessionId, u64)> = Vec::new();
        for (what, who, n) in steps {
            let host = account(&format!("10.0.0.{who}"), "bulk");
            match (what, calls.last_mut()) {
                (0, _) => calls.push((start(&mut books, "x"), 0)),
                (1 | 2, Some((call, _))) => books.traffic(*call, &host, n, n / 3),
                (3, Some((call, at))) => {
                    *at += n % 100;
                    books.mark(*call, seconds(*at), Money::from_micros(*at * 1_234_567));
                }
                (4, Some((call, at))) => {
                    books.end(*call, seconds(*at), Money::from_micros(*at * 1_234_567), "idle");
                    calls.pop();
                }
                (5, _) => file = books.compact(),
                _ => {}
            }
            file.extend(ledger(&mut books).into_bytes());
        }
        // All lines that there are say what the books say, but for what the last minute brought.
        for (call, at) in calls {
            books.end(call, seconds(at), Money::from_micros(at * 1_234_567), "idle");
        }
        file.extend(ledger(&mut books).into_bytes());
        let again = Books::replay(&file);
        prop_assert!(again.broken.is_empty() && again.damaged == 0);
        for by in [By::Host, By::Day] {
            let query = Query::all(by);
            prop_assert_eq!(again.books.query(&query), books.query(&query));
        }
        // A file that was cut never says more than the whole.
        let total = |books: &Books| {
            let lines = books.query(&Query::all(By::Peer));
            lines.first().map_or(Money::ZERO, |l| l.sums.price)
        };
        let cut = Books::replay(&file[..cut.index(file.len() + 1)]);
        prop_assert_eq!(cut.damaged, 0);
        prop_assert!(total(&cut.books) <= total(&books));
    }
}

#[test]
fn a_ledger_that_is_read_late_counts_beside_what_was_paid_meanwhile() {
    let (_, text) = example();
    let mut books = Books::new();
    books.fee(NOON, &name("shore"), &name("vsat"), usd(), money("400"));
    let over = start(&mut books, "inmarsat");
    books.end(over, seconds(10), money("2.00"), "idle");
    let goes_on = start(&mut books, "iridium");
    books.mark(goes_on, seconds(61), money("0.50"));
    assert_eq!(books.take_in(text.as_bytes()), 0);
    let spent = |books: &Books| books.spent_on(NOON, usd(), &name("shore")).to_string();
    assert_eq!(spent(&books), "411.51");
    let anew = books.compact();
    books.mark(goes_on, seconds(200), money("1.00"));
    let more = ledger(&mut books);
    let again = Books::replay(&[anew, more.into_bytes()].concat()).books;
    assert_eq!(
        (spent(&again).as_str(), again.spent_on(NOON, usd(), &name("shore"))),
        ("412.01", books.spent_on(NOON, usd(), &name("shore")))
    );
}

#[test]
fn a_clock_that_stood_in_the_future_takes_no_sums_of_the_present() {
    let mut books = Books::new();
    let pay = |books: &mut Books, at: Wall| {
        let call = books.start(at, &name("shore"), &name("x"), usd(), account("node", ""));
        books.traffic(call, &account("node", ""), 100, 0);
        books.end(call, seconds(1), money("5"), "idle");
    };
    pay(&mut books, NOON);
    pay(&mut books, Wall(NOON.0 + 36 * 365 * 86_400));
    books.fee(Wall(NOON.0 + 37 * 365 * 86_400), &name("shore"), &name("x"), usd(), money("1"));
    let of_month = |books: &Books| {
        let (peer, line) = (name("shore"), name("x"));
        let bytes = books.bytes_on(NOON, &peer, &line).0;
        (books.spent_on(NOON, usd(), &peer), books.spent_over(NOON, usd(), &peer, &line), bytes)
    };
    assert_eq!(of_month(&books), (money("5"), money("5"), 100));
    let text = ledger(&mut books);
    let replayed = Books::replay(text.as_bytes()).books;
    assert_eq!(of_month(&replayed), (money("5"), money("5"), 100));
    // Months that are long over are forgotten.
    for month in 1..20 {
        pay(&mut books, Wall(NOON.0 + month * 31 * 86_400));
    }
    assert_eq!(books.months.len(), MONTHS);
    let sums = [books.spent.len(), books.spent_over.len(), books.bytes.len()];
    assert!(sums.iter().all(|n| *n <= 3 * MONTHS), "{sums:?}");
    assert_eq!(books.spent_on(NOON, usd(), &name("shore")), Money::ZERO);
}
