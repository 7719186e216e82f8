//! The system's tools fail or hang at each step of a change of rules and routes: what stood before
//! stands, or what is to stand, and never nothing; it is told, and tried again.

use std::fs::{self, Permissions};
use std::ops::RangeInclusive;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use crate::harness::{Plan, World, install_script, must, root, wait_for, wait_long_for};
use crate::tcp::{check_echo, listen};

const SERVER: &str = "10.2.0.2:7000";
const MORE: &str = "10.3.0.0/24";

/// A world whose ship finds an `ip` and an `nft` in its path that count their calls, and fail or
/// hang at one, or from one on.
struct Faulty {
    world: World,
    dir: PathBuf,
}

impl Faulty {
    fn new() -> Faulty {
        let mut world = World::without_gateways(&Plan::default());
        let dir = world.dir("tools");
        for tool in ["ip", "nft"] {
            let script = format!(
                "#!/bin/sh\ncd {}\necho >> calls\nn=$(wc -l < calls)\n\
                 read how at end < fault\n\
                 if [ $n -ge $at -a $n -le $end ]; then\n\
                   if [ $how = hang ]; then exec sleep 1000; fi\n\
                   echo 'broken by the test' >&2; exit 1\nfi\nexec {} \"$@\"\n",
                dir.display(),
                must(&world.gwa, &format!("command -v {tool}")).trim(),
            );
            install_script(&script, &dir.join(tool));
        }
        // `nft` runs as nobody.
        fs::write(dir.join("calls"), "").expect("a count");
        let all = Permissions::from_mode(0o666);
        fs::set_permissions(dir.join("calls"), all).expect("open to all");
        let path = std::env::var("PATH").expect("a path");
        world.a.configure(|s| s.prefix = format!("-- env PATH={}:{path} setpriv", dir.display()));
        let faulty = Faulty { world, dir };
        faulty.set("none", 0..=0);
        faulty
    }

    fn start(&mut self) {
        self.world.b.start();
        self.world.a.start();
        self.world.a.wait_until_up();
        self.world.b.wait_until_up();
    }

    fn set(&self, how: &str, at: RangeInclusive<usize>) {
        let fault = format!("{how} {} {}\n", at.start(), at.end());
        fs::write(self.dir.join("calls"), "").expect("a count");
        fs::write(self.dir.join("fault"), fault).expect("a fault");
    }

    fn calls(&self) -> usize {
        // A line each, for what is added to a file is there at once and whole.
        fs::read_to_string(self.dir.join("calls")).expect("a count").lines().count()
    }

    /// Rules and routes of the ship's that are the gateway's.
    fn rules(&self) -> String {
        let all = "ip rule show; ip -6 rule show; ip route show table all proto 143; \
                   ip -6 route show table all proto 143";
        let text = must(&self.world.gwa, all);
        let ours = text.lines().filter(|l| !l.contains("lookup") || l.contains("proto 143"));
        ours.collect::<Vec<_>>().join("\n")
    }

    /// Adds a route of the peer's, or takes it out, and waits until that was tried.
    fn change(&mut self, with: bool) {
        let before = self.tries();
        self.world.a.configure(|s| {
            s.routes.retain(|route| *route != MORE);
            s.routes.extend(with.then_some(MORE));
        });
        self.world.a.signal("HUP");
        wait_long_for("the change", Duration::from_secs(60), || {
            (self.tries() > before).then_some(()).ok_or_else(|| self.world.a.log())
        });
    }

    fn tries(&self) -> usize {
        self.world.a.log().matches("the configuration was read again").count()
    }

    fn trouble(&self) -> Option<String> {
        self.world.a.status().node.trouble
    }

    fn wait_until_well(&self) {
        wait_long_for("another try", Duration::from_secs(60), || match self.trouble() {
            None => Ok(()),
            Some(why) => Err(why),
        });
    }
}

#[test]
fn a_tool_that_fails_at_any_step_leaves_the_rules_of_before_or_after() {
    if !root() {
        return;
    }
    let mut faulty = Faulty::new();
    faulty.start();
    let listener = listen(&faulty.world.server, SERVER);
    let before = faulty.rules();
    faulty.change(true);
    let after = faulty.rules();
    assert_ne!(before, after);
    faulty.change(false);
    assert_eq!(faulty.rules(), before);
    let mut told = 0;
    for at in 1..100 {
        faulty.set("fail", at..=at);
        faulty.change(true);
        if faulty.calls() < at {
            println!("{told} of {} steps that failed were told", at - 1);
            assert!(at > 5 && told > 0, "{at} {told}");
            return;
        }
        let stands = faulty.rules();
        assert!(stands == before || stands == after, "step {at}:\n{stands}");
        assert!(stands == after || faulty.trouble().is_some(), "step {at} is not told");
        told += usize::from(faulty.trouble().is_some());
        check_echo(&faulty.world.client, &listener);
        faulty.wait_until_well();
        assert_eq!(faulty.rules(), after, "step {at}");
        faulty.set("none", 0..=0);
        faulty.change(false);
        assert_eq!(faulty.rules(), before, "step {at}");
    }
    panic!("a change takes more than a hundred calls");
}

#[test]
fn tools_that_hang_are_given_up_and_what_stood_stands() {
    if !root() {
        return;
    }
    let mut faulty = Faulty::new();
    faulty.start();
    let listener = listen(&faulty.world.server, SERVER);
    let before = faulty.rules();
    faulty.set("hang", 3..=3);
    faulty.change(true);
    // The time that it took is pause enough before the next try.
    faulty.world.a.wait_for_log("did not end within");
    faulty.wait_until_well();
    check_echo(&faulty.world.client, &listener);
    assert_ne!(faulty.rules(), before);
    // The child that owns the table stops answering.
    let ship = faulty.world.a.pid();
    let child = must(&faulty.world.gwa, &format!("pgrep -P {ship} nft"));
    must(&faulty.world.gwa, &format!("kill -STOP {}", child.trim()));
    faulty.change(false);
    faulty.world.a.wait_for_log("`nft` does not answer");
    check_echo(&faulty.world.client, &listener);
    faulty.wait_until_well();
    assert_eq!(faulty.rules(), before);
    // Once it goes on it finds that it is not needed any more.
    must(&faulty.world.gwa, &format!("kill -CONT {}", child.trim()));
    let tables = || must(&faulty.world.gwa, "nft list tables | grep -c bentpipe_");
    wait_for("one table", || match tables().trim() {
        "1" => Ok(()),
        other => Err(other.to_owned()),
    });
    check_echo(&faulty.world.client, &listener);
}

#[test]
fn a_start_that_fails_at_any_step_says_why_and_leaves_nothing() {
    if !root() {
        return;
    }
    let mut faulty = Faulty::new();
    faulty.world.a.configure(|s| s.on_failure = "wire");
    faulty.world.b.start();
    for at in 1..100 {
        faulty.set("fail", at..=at);
        faulty.world.a.start();
        let up = wait_for("an outcome", || {
            let log = faulty.world.a.log();
            match (log.contains("bentpipe is up"), log.contains("broken by the test")) {
                (true, _) => Ok(true),
                (false, true) => Ok(false),
                _ => Err(log),
            }
        });
        if up && faulty.calls() < at {
            assert!(at > 3);
            return;
        }
        if up {
            // All was in force when it looked for what it could warn of.
            faulty.world.a.wait_for_log("not looked for routes of this host");
            faulty.world.a.signal("TERM");
        }
        assert_eq!(faulty.world.a.wait_until_ended().success(), up);
        wait_for("nothing to be left", || match faulty.rules().as_str() {
            "" => Ok(()),
            left => Err(format!("step {at}: {left}")),
        });
    }
    panic!("a start takes more than a hundred calls");
}

/// Each step from which on tools may fail is taken in the crate `os`; here that it is told.
#[test]
fn tools_that_go_on_failing_leave_what_stood_and_it_is_told_until_they_work() {
    if !root() {
        return;
    }
    let mut faulty = Faulty::new();
    faulty.start();
    let listener = listen(&faulty.world.server, SERVER);
    let before = faulty.rules();
    faulty.set("fail", 1..=1_000_000);
    faulty.change(true);
    assert!(faulty.trouble().is_some_and(|why| why.contains("broken by the test")));
    let calls = faulty.calls();
    wait_for("another try", || match faulty.calls() {
        now if now > calls => Ok(()),
        now => Err(format!("{now} calls")),
    });
    assert_eq!(faulty.rules(), before);
    check_echo(&faulty.world.client, &listener);
    // Another program flushes the rules meanwhile.
    for family in ["-4", "-6"] {
        let main = format!("ip {family} rule add priority 32766 lookup main");
        must(&faulty.world.gwa, &format!("ip {family} rule flush; {main}"));
    }
    faulty.world.a.wait_for_log("cannot be mended");
    assert!(faulty.trouble().is_some());
    faulty.set("none", 0..=0);
    faulty.wait_until_well();
    check_echo(&faulty.world.client, &listener);
    let after = faulty.rules();
    assert!(after.lines().count() >= before.lines().count() && after.contains("10.3.0.0/24"));
}

#[test]
fn a_start_whose_nft_hangs_is_given_up_and_leaves_nothing() {
    if !root() {
        return;
    }
    let mut faulty = Faulty::new();
    faulty.world.a.configure(|s| s.on_failure = "wire");
    let nft = faulty.dir.join("nft");
    fs::remove_file(&nft).expect("a script");
    // It hears all and says nothing, until nobody speaks to it any more.
    install_script("#!/bin/sh\nexec cat > /dev/null\n", &nft);
    faulty.world.a.start();
    faulty.world.a.wait_for_log("`nft` does not answer");
    assert!(!faulty.world.a.wait_until_ended().success());
    wait_for("nothing to be left", || match faulty.rules().as_str() {
        "" => Ok(()),
        left => Err(left.to_owned()),
    });
}
