//! What the running gateway knows of its links.

use std::path::Path;

use super::check::Check;
use crate::admin::{
    LinkState, LinkStatus, NoGateway, OneSidedStatus, RekeyState, ServiceStatus, Status,
};
use crate::human::span;

/// The gateway that runs with this file, and each of its links; `status` is its answer.
pub(super) fn checks(file: &Path, status: &miette::Result<Status>) -> Vec<Check> {
    let check = "gateway";
    match status {
        Ok(status) => {
            let running = format!("it runs, for {}", span(status.node.uptime_ms));
            let mut checks = vec![Check::ok(check, running)];
            for l in &status.links {
                checks.push(link(l, &status.node.public_key));
                checks.extend(disagreements(l));
                checks.extend(books(l));
            }
            checks.extend(status.one_sided.iter().map(one_sided));
            checks.extend(status.services.iter().map(service));
            checks.extend(strangers(status));
            checks
        }
        Err(e) if e.downcast_ref().is_some_and(|none: &NoGateway| !none.is_roots_elsewhere) => {
            let start = format!("`bentpipe up {}` starts it", file.display());
            vec![Check::ok(check, format!("it does not run; {start}"))]
        }
        // Another user's, or one that does not answer.
        Err(e) => vec![Check::warn(check, e.to_string(), "ask as root, or look at its log")],
    }
}

fn link(link: &LinkStatus, own_key: &str) -> Check {
    let (check, peer) = ("link", &link.peer);
    if let Some(failing) = &link.failing {
        return Check::fail(check, format!("{peer}: {}", failing.finding()), failing.mend(own_key));
    }
    if let Some([one, other]) = &link.twins {
        return Check::fail(
            check,
            format!("two nodes seem to use the key of {peer}: from {one} and from {other}"),
            "each ends the other's session: give each a private key of its own (`bentpipe \
             keygen`), and a [[peer]] here",
        );
    }
    if link.rekey != RekeyState::InTime {
        let mend = "look for a filter or somebody on the path who drops handshakes, packets of \
                    168 bytes and more";
        let finding = match link.rekey {
            RekeyState::Overdue => "rekey overdue: data passes and handshakes do not",
            _ => "its keys were worn out and erased; no handshake has succeeded since",
        };
        return Check::fail(check, format!("{peer}: {finding}"), mend);
    }
    match (link.state, link.dead) {
        (LinkState::Resting, _) => {
            // Who dials: this node, or the peer alone, to its line here or to a telephone.
            let said = match link.line.as_ref().is_some_and(|line| !line.only_answers) {
                true => "rests: its line is down, and is raised when somebody waits for it",
                false => "rests: its line is down; this node only answers, and the peer calls",
            };
            Check::ok(check, format!("{peer}: {said}{}", cause_of(link)))
        }
        (LinkState::OrderedDown, _) => {
            let said = "its line is down by order, and is raised for nothing";
            let mend = format!("`bentpipe link auto {peer}` leaves it to the rules again");
            Check::warn(check, format!("{peer}: {said}"), mend)
        }
        (LinkState::LineFailed, _) => {
            let said = "its line was to be raised, and that came to nothing";
            let mend = format!(
                "`bentpipe link why {peer}` says when it is tried again; look at the modem or the \
                 `raise` command, and whether the peer's gateway runs"
            );
            Check::warn(check, format!("{peer}: {said}{}", cause_of(link)), mend)
        }
        (LinkState::Up, None) => Check::ok(check, format!("{peer}: up")),
        (LinkState::Rising, _) => {
            let mend = "ask again in ten seconds: then it is known why";
            Check::warn(check, format!("{peer}: has not answered yet"), mend)
        }
        (LinkState::Departed, _) => {
            let heard = link.heard_ms.map_or_else(|| "long".to_owned(), span);
            let said = "ended in order, and is waited for until it calls";
            Check::ok(check, format!("{peer}: {said}; last heard {heard} ago"))
        }
        (LinkState::Down, _) if link.heard_ms.is_some() => {
            let heard = link.heard_ms.map_or_else(String::new, span);
            let mend = format!(
                "last heard {heard} ago; it is called when there is something to send, or calls \
                 itself; `bentpipe doctor FILE` there says why it does not"
            );
            Check::warn(check, format!("{peer}: down, with nothing that asks for it"), mend)
        }
        (LinkState::Down, _) => {
            let mend = "the file names no address for it, so that the peer has to call this node, \
                        over the network or by telephone; if it should have by now, `bentpipe \
                        doctor FILE` there says why it does not";
            Check::warn(
                check,
                format!("{peer}: has not called, and its address is not known"),
                mend,
            )
        }
        _ => {
            let mend = "`bentpipe status` says which direction, and for how long";
            Check::warn(check, format!("{peer}: does not answer at the moment"), mend)
        }
    }
}

/// Why the line is down, in brackets; nothing of a peer that calls by telephone.
fn cause_of(link: &LinkStatus) -> String {
    let cause = link.line.as_ref().map(|line| line.cause.as_str()).unwrap_or_default();
    if cause.is_empty() { String::new() } else { format!(" ({cause})") }
}

/// What the two files cannot both be right about; both ends are told when they speak.
fn disagreements(link: &LinkStatus) -> impl Iterator<Item = Check> {
    link.disagreements.iter().map(|told| {
        let mend = "mend one of the two files, then `systemctl reload` or SIGHUP there";
        Check::warn("link", format!("{}: {told}", link.peer), mend)
    })
}

/// What calls cost is forgotten if the gateway ends before it is on the disk.
fn books(link: &LinkStatus) -> Option<Check> {
    let why = link.books_unwritten.as_ref()?;
    let finding = format!("{}: what it costs cannot be written: {why}", link.peer);
    let mend = "look at the state directory (/var/lib/bentpipe for root): its owner and rights, \
                `lsattr`, and whether the disk is full or read-only; do not stop the gateway before";
    Some(Check::warn("books", finding, mend))
}

/// A link without a gateway at its far end: nobody there tells how it is.
fn one_sided(link: &OneSidedStatus) -> Check {
    let OneSidedStatus { peer, device, connections_open: open, .. } = link;
    Check::ok("link", format!("{peer}: split at this end alone, over {device}; {open} connections"))
}

/// A program beside the gateway: what it was to do happens without it as long as it fails.
fn service(service: &ServiceStatus) -> Check {
    let (check, name) = ("service", &service.name);
    if !service.keeps_failing() {
        return Check::ok(check, format!("{name}: {}", service.state.words()));
    }
    let next = match service.next_start_ms {
        Some(ms) => format!("it is started again in {}", span(ms)),
        None => "it was started again".to_owned(),
    };
    let mend = format!(
        "mend what its last lines in the gateway's log say, or `command` in [service.{name}]; {next}"
    );
    let finding = format!("{name}: fails over and over: {}", service.end_in_words());
    Check::fail(check, finding, mend)
}

/// Callers whose key is known, so that nobody can fill the list for nothing.
fn strangers(status: &Status) -> Vec<Check> {
    let told = |s: &crate::admin::Stranger| {
        let finding = format!("{} (from {}, {} ago)", s.finding(), s.address, span(s.ago_ms));
        let own = &status.node.public_key;
        let mend = match &s.public_key {
            Some(key) => format!("if it is a peer of yours, its public_key is {key}"),
            None => format!("if it is a peer of yours, its file must name {own}"),
        };
        Check::warn("stranger", finding, mend)
    };
    status.node.strangers.iter().map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::{Failing, LineReport, Reason, Stranger};
    use crate::doctor::check::State;

    #[test]
    fn a_link_that_fails_is_told_with_its_mend_and_one_that_is_up_in_a_word() {
        let mut status = Status::default();
        status.node.public_key = "OWN=".into();
        status.links = ["shore", "ship", "buoy"]
            .map(|peer| LinkStatus { peer: peer.into(), ..LinkStatus::default() })
            .into();
        status.links[0].failing = Some(Failing {
            reason: Reason::AnswersForged,
            address: Some("192.0.2.2:4500".into()),
            ..Failing::default()
        });
        status.links[1].state = LinkState::Up;
        status.links[1].disagreements = vec!["both files say end = \"hub\"".into()];
        status.node.strangers = vec![Stranger {
            reason: Reason::OtherNode,
            public_key: Some("KEY=".into()),
            address: "192.0.2.9:4500".into(),
            ..Stranger::default()
        }];
        let checks = checks(Path::new("x.toml"), &Ok(status));
        let states: Vec<State> = checks.iter().map(|c| c.state).collect();
        let all = [State::Ok, State::Fail, State::Ok, State::Warn, State::Warn, State::Warn];
        assert_eq!(states, all);
        assert_eq!(checks[3].finding, "ship: both files say end = \"hub\"");
        assert!(checks[1].finding.starts_with("shore: answers come from 192.0.2.2:4500"));
        assert!(checks[1].mend.as_ref().unwrap().contains("preshared_key"));
        assert!(checks[5].mend.as_ref().unwrap().contains("KEY="));
    }

    #[test]
    fn keys_that_are_not_replaced_in_time_are_a_failure_although_the_link_is_up() {
        for (rekey, words) in [
            (RekeyState::Overdue, "ship: rekey overdue: data passes and handshakes do not"),
            (RekeyState::Erased, "ship: its keys were worn out and erased"),
        ] {
            let (peer, state) = ("ship".to_owned(), LinkState::Up);
            let check = link(&LinkStatus { peer, state, rekey, ..LinkStatus::default() }, "OWN=");
            assert_eq!(check.state, State::Fail);
            assert!(check.finding.starts_with(words), "{}", check.finding);
            assert!(check.mend.as_ref().unwrap().contains("who drops handshakes"));
        }
    }

    #[test]
    fn two_nodes_with_one_key_are_a_failure_although_the_link_is_up() {
        let twins = Some(["192.0.2.1:4500", "192.0.2.2:4500"].map(str::to_owned));
        let (peer, state) = ("ship".to_owned(), LinkState::Up);
        let check = link(&LinkStatus { peer, state, twins, ..LinkStatus::default() }, "OWN=");
        assert_eq!(check.state, State::Fail);
        assert!(check.finding.contains("the key of ship: from 192.0.2.1:4500 and from 192.0.2.2"));
    }

    #[test]
    fn peers_that_departed_or_were_heard_once_are_not_asked_for_again_in_ten_seconds() {
        let mut status = Status::default();
        let state = |peer: &str, state, heard_ms| LinkStatus {
            peer: peer.into(),
            state,
            heard_ms,
            ..LinkStatus::default()
        };
        status.links = vec![
            state("ship", LinkState::Departed, Some(180_000)),
            state("buoy", LinkState::Down, Some(180_000)),
            state("raft", LinkState::Down, None),
        ];
        status.one_sided = vec![OneSidedStatus { peer: "sky".into(), ..OneSidedStatus::default() }];
        let checks = checks(Path::new("x.toml"), &Ok(status));
        let states: Vec<State> = checks.iter().map(|c| c.state).collect();
        assert_eq!(states, [State::Ok, State::Ok, State::Warn, State::Warn, State::Ok]);
        let departed =
            "ship: ended in order, and is waited for until it calls; last heard 3m00s ago";
        assert_eq!(checks[1].finding, departed);
        assert!(checks[2].mend.as_ref().unwrap().starts_with("last heard 3m00s ago"));
        assert!(checks[3].finding.contains("has not called"));
        let mend = checks[3].mend.as_ref().unwrap();
        assert!(mend.contains("has to call this node, over the network or by telephone"), "{mend}");
        assert!(checks[4].finding.starts_with("sky: split at this end alone"));
    }

    #[test]
    fn a_line_that_is_down_as_it_should_be_is_no_fault() {
        let line = |cause: &str| LineReport { cause: cause.into(), ..LineReport::default() };
        let checked = |state, line| {
            let peer = "shore".to_owned();
            link(&LinkStatus { peer, state, line, ..LinkStatus::default() }, "OWN=")
        };
        let rests = checked(LinkState::Resting, Some(line("idle")));
        assert_eq!(rests.state, State::Ok);
        let told =
            "shore: rests: its line is down, and is raised when somebody waits for it (idle)";
        assert_eq!(rests.finding, told);
        let ordered = checked(LinkState::OrderedDown, Some(line("ordered from here")));
        assert_eq!(ordered.state, State::Warn);
        assert!(ordered.mend.unwrap().contains("`bentpipe link auto shore`"));
        let failed = checked(LinkState::LineFailed, Some(line("dialling failed: BUSY")));
        assert_eq!(failed.state, State::Warn);
        assert!(failed.finding.ends_with("came to nothing (dialling failed: BUSY)"));
        assert!(failed.mend.unwrap().starts_with("`bentpipe link why shore`"));
        let answers = LineReport { only_answers: true, ..line("not wanted yet") };
        for line in [Some(answers), None] {
            let called = checked(LinkState::Resting, line);
            assert_eq!(called.state, State::Ok);
            assert!(called.finding.contains("this node only answers"), "{called:?}");
        }
    }

    #[test]
    fn a_service_that_fails_over_and_over_is_a_failure_with_what_it_said() {
        let once = ServiceStatus { name: "web".into(), failures: 1, ..ServiceStatus::default() };
        assert_eq!(service(&once).state, State::Ok);
        let often = ServiceStatus {
            failures: 9,
            ended: Some("exit status: 1".into()),
            last_line: Some("ca.key is open to others: chmod 600 ca.key".into()),
            next_start_ms: Some(30_000),
            ..once
        };
        let check = service(&often);
        assert_eq!(check.state, State::Fail);
        let told = "web: fails over and over: exit status: 1, \"ca.key is open to others: chmod \
                    600 ca.key\"";
        assert_eq!(check.finding, told);
        let mend = check.mend.unwrap();
        assert!(mend.contains("[service.web]") && mend.ends_with("started again in 30s"), "{mend}");
    }

    #[test]
    fn a_gateway_that_does_not_run_is_no_fault() {
        let none = crate::admin::status(Path::new("/nonexistent/bentpipe.sock"));
        let checks = checks(Path::new("x.toml"), &none);
        assert_eq!(checks.len(), 1);
        assert_eq!(checks[0].state, State::Ok);
        assert!(checks[0].finding.contains("does not run; `bentpipe up x.toml`"));
    }
}
