//! One gateway program: its configuration, its life, and what it says of itself.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bentpipe::admin::{self, Answer, LinkState, Request, Status};
use link::keys::PrivateKey;
use os::netns::NetNs;

use crate::harness::{LAN, PATIENCE, Plan, install, run, said, wait_for};

/// What is started.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_bentpipe");
/// Names a program that gateways run instead: tests about times are to see an optimised one.
const PROGRAM_FOR_TIMES: &str = "BENTPIPE_PROGRAM";

/// A node's key pair, in base64.
#[derive(Clone, Debug)]
pub struct Keys {
    pub private: String,
    pub public: String,
}

impl Keys {
    pub fn new() -> Keys {
        let private = PrivateKey::generate(os::proc::entropy().expect("entropy"));
        Keys { private: private.to_base64(), public: private.public().to_string() }
    }

    pub fn pair() -> [Keys; 2] {
        [Keys::new(), Keys::new()]
    }
}

/// What a test may want otherwise in a gateway's file. `allow`, `deny`, `source` and `open` are
/// written only where a test asks for them: a user's file mostly has none of them.
#[derive(Clone, Debug)]
pub struct Settings {
    pub listen: String,
    pub endpoint: Option<String>,
    /// Interfaces whose TCP is split; `None`: neither interception nor TUN device.
    pub lan: Option<Vec<&'static str>>,
    pub routes: Vec<&'static str>,
    pub allow: Vec<&'static str>,
    pub deny: Vec<&'static str>,
    pub source: Option<&'static str>,
    pub on_failure: &'static str,
    pub open: Option<&'static str>,
    pub mtu: u16,
    /// More lines of `[node]` and of `[[peer]]`.
    pub node: String,
    pub peer: String,
    /// Started by these words in front, such as `setpriv …`.
    pub prefix: String,
}

impl Settings {
    /// Gateway a: the client's side, which knows where the other is. As with the README's ship,
    /// nobody behind the other reaches its hosts.
    pub fn ship() -> Settings {
        Settings {
            listen: "192.0.2.1:4500".into(),
            endpoint: Some("192.0.2.2:4500".into()),
            lan: Some(vec![LAN]),
            routes: vec!["10.2.0.0/24", "fd02::/64"],
            allow: vec![],
            deny: vec![],
            source: None,
            on_failure: "block",
            open: None,
            mtu: 1500,
            node: String::new(),
            peer: String::new(),
            prefix: String::new(),
        }
    }

    /// Gateway b: the server's side, which waits to be called. Its servers' addresses are private,
    /// so that it has to list them.
    pub fn shore() -> Settings {
        Settings {
            listen: "192.0.2.2:4500".into(),
            endpoint: None,
            routes: vec!["10.1.0.0/24", "fd01::/64"],
            allow: vec!["10.2.0.0/24", "fd02::/64"],
            ..Settings::ship()
        }
    }

    fn file(&self, own: &Keys, peer: &Keys, rate: &str, delay_ms: u64) -> String {
        let mut node = format!(
            "[node]\nprivate_key = \"{}\"\nlisten = \"{}\"\nadmin = \"admin.sock\"\n",
            own.private, self.listen
        );
        if let Some(lan) = &self.lan {
            node += &format!("tun = \"bp0\"\nlan = {lan:?}\n");
        }
        let mut far = format!(
            "[[peer]]\nname = \"far\"\npublic_key = \"{}\"\nroutes = {:?}\non_failure = \"{}\"\n\
             link = {{ send = \"{rate}\", receive = \"{rate}\", delay = \"{delay_ms}ms\", \
             mtu = {} }}\n",
            peer.public, self.routes, self.on_failure, self.mtu,
        );
        for (key, prefixes) in [("allow", &self.allow), ("deny", &self.deny)] {
            if !prefixes.is_empty() {
                far += &format!("{key} = {prefixes:?}\n");
            }
        }
        let words =
            [("endpoint", self.endpoint.as_deref()), ("source", self.source), ("open", self.open)];
        for (key, word) in words {
            if let Some(word) = word {
                far += &format!("{key} = \"{word}\"\n");
            }
        }
        format!("{node}{}\n{far}{}\n", self.node, self.peer)
    }
}

/// A gateway, running or not.
pub struct Gateway {
    name: &'static str,
    ns: NetNs,
    dir: PathBuf,
    settings: Settings,
    keys: [Keys; 2],
    rate: String,
    delay_ms: u64,
    program: PathBuf,
    child: Option<Child>,
    starts: u32,
}

impl Gateway {
    pub fn new(
        name: &'static str,
        ns: &NetNs,
        dir: PathBuf,
        settings: Settings,
        own: &Keys,
        peer: &Keys,
        plan: &Plan,
    ) -> Gateway {
        let gateway = Gateway {
            name,
            ns: ns.clone(),
            dir,
            settings,
            keys: [own.clone(), peer.clone()],
            rate: plan.rate.to_string(),
            delay_ms: plan.delay_ms,
            program: std::env::var_os(PROGRAM_FOR_TIMES).unwrap_or_else(|| PROGRAM.into()).into(),
            child: None,
            starts: 0,
        };
        gateway.write(&gateway.text());
        gateway
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What its file was made of.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The configuration file.
    pub fn file(&self) -> PathBuf {
        self.dir.join("gateway.toml")
    }

    /// Where its files are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where the chunks are that its peer sent, and what the peer holds is written down.
    pub fn chunks(&self) -> PathBuf {
        let [own, peer] = self.keys.each_ref().map(|keys| keys.public.replace('/', "_"));
        self.dir.join("chunks").join(own).join(peer)
    }

    /// The file as the settings make it.
    pub fn text(&self) -> String {
        self.settings.file(&self.keys[0], &self.keys[1], &self.rate, self.delay_ms)
    }

    /// Changes the settings and the file, not the program.
    pub fn configure(&mut self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.settings);
        self.write(&self.text());
    }

    /// Replaces the file.
    pub fn write(&self, text: &str) {
        // The same file as before, so that its owner stays.
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(self.file()).expect("a file");
        file.write_all(text.as_bytes()).expect("written");
    }

    /// Puts its program in place as a package does, also while it runs: another file takes the
    /// name.
    pub fn install(&mut self) {
        let (program, new) = (self.dir.join("bentpipe"), self.dir.join("bentpipe.new"));
        install(&self.program, &new);
        fs::rename(&new, &program).expect("a name");
        self.program = program;
    }

    /// Starts the program; it may still fail.
    pub fn start(&mut self) {
        assert!(self.child.is_none(), "{} runs already", self.name);
        self.starts += 1;
        let log = File::create(self.log_file()).expect("a log");
        // setpriv ends the gateway when the test's thread is gone, however it went.
        let words = format!("setpriv --pdeathsig KILL {}", self.settings.prefix);
        let mut words = words.split_whitespace();
        let child = self
            .ns
            .command(words.next().unwrap_or_default())
            .args(words)
            .arg("--")
            .arg(&self.program)
            .arg("up")
            .arg(self.file())
            .env("STATE_DIRECTORY", &self.dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log)
            .spawn();
        self.child = Some(child.expect("setpriv starts (util-linux)"));
    }

    fn log_file(&self) -> PathBuf {
        self.dir.join(format!("log{}", self.starts))
    }

    /// What it has logged since its last start.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let done = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(done.is_ok_and(|s| s.success()), "kill -s {name} {pid}");
    }

    /// Kills it as a crash would.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("a signal");
        child.wait().expect("it ends");
    }

    /// Waits until it has ended by itself.
    pub fn wait_until_ended(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("it runs");
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            if let Some(status) = child.try_wait().expect("a child") {
                return status;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let _ = child.kill();
        let _ = child.wait();
        panic!("{} does not end; its log:\n{}", self.name, self.log());
    }

    /// Its control socket: as the file names it, or the default's in the program's own view of
    /// the files.
    pub fn socket(&self) -> PathBuf {
        let named = self.dir.join("admin.sock");
        let default = || format!("/proc/{}/root/run/bentpipe.sock", self.pid()).into();
        if named.exists() { named } else { default() }
    }

    /// Runs a command that asks it something and must succeed; what that printed.
    pub fn must(&self, words: &[&str]) -> String {
        let output = run(Command::new(PROGRAM).args(words).arg("--socket").arg(self.socket()));
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What it says of itself.
    pub fn status(&self) -> Status {
        match self.try_status() {
            Ok(status) => status,
            Err(e) => panic!("{} says nothing of itself: {e}\n{}", self.name, self.log()),
        }
    }

    pub fn try_status(&self) -> Result<Status, String> {
        match admin::ask(&self.socket(), &Request::Status, units::Duration::from_secs(20)) {
            Ok(Answer::Status(status)) => Ok(*status),
            Ok(other) => Err(format!("{other:?}")),
            Err(e) => Err(e.to_string()),
        }
    }

    /// How many packets it dropped that were not in order.
    pub fn dropped(&self) -> u64 {
        self.status().node.dropped.values().sum()
    }

    /// How many packets it dropped for `reason`.
    pub fn dropped_for(&self, reason: &str) -> u64 {
        self.status().node.dropped.get(reason).copied().unwrap_or(0)
    }

    /// Waits until it has a link.
    pub fn wait_until_up(&mut self) {
        let begin = Instant::now();
        loop {
            let ended = self.child.as_mut().and_then(|c| c.try_wait().ok()).flatten();
            assert!(ended.is_none(), "{} ended ({ended:?}):\n{}", self.name, self.log());
            let up = |s: Status| s.links.iter().all(|l| l.state == LinkState::Up);
            if self.try_status().is_ok_and(up) {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "{} has no link:\n{}", self.name, self.log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until its log says `words`.
    pub fn wait_for_log(&self, words: &str) {
        wait_for(words, || match self.log() {
            log if log.contains(words) => Ok(()),
            log => Err(log),
        });
    }

    /// Its keys.
    pub fn keys(&self) -> &Keys {
        &self.keys[0]
    }

    /// What its first thread, a gateway's only shard, has run, and has waited for a processor
    /// that something else ran on.
    pub fn ran_and_waited(&self) -> [Duration; 2] {
        let text =
            fs::read_to_string(format!("/proc/{}/schedstat", self.pid())).expect("schedstat");
        let mut fields = text.split_whitespace();
        [(); 2].map(|()| {
            let nanos = fields.next().and_then(|n| n.parse().ok()).expect("nanoseconds");
            Duration::from_nanos(nanos)
        })
    }

    /// Open descriptors.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("a process").count()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("---- log of gateway {}\n{}", self.name, self.log());
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
