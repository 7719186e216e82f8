//! HTTPS that is opened: a real TLS server behind the hub, curl and a browser behind the terminal.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use os::netns::NetNs;
use serde_json::Value;

use crate::accelerators::serve_text;
use crate::documents::{WEB, block, put};
use crate::gateway::PROGRAM;
use crate::harness::{Daemon, Plan, Scratch, World, must, root, shell, wait_for};
use crate::tcp::try_connect;
use crate::web::{example, service, wait_for_count, world_with};

const SERVER: &str = "10.2.0.2";
/// Whom the terminal's service runs as: the authority's key is his.
const USER: u32 = 64_321;

/// The world's own authority and server: names that are right, and one whose certificate is
/// another's.
struct Origin {
    dir: PathBuf,
    _caddy: Daemon,
}

/// Certificates of an authority that only the hub and those who are not opened trust.
fn issue(ns: &NetNs, dir: &Path) {
    let dir = dir.display();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    must(
        ns,
        &format!(
            "cd {dir} && openssl req -x509 {key} -days 2 -subj /CN=world -keyout root.key -out root.pem"
        ),
    );
    let right = "DNS:good.test,DNS:somebank.test,DNS:ws.test,DNS:papers.test";
    for (file, names) in [("right", right), ("wrong", "DNS:other.test")] {
        must(
            ns,
            &format!(
                "cd {dir} && echo 'subjectAltName={names}' > ext && \
                 openssl req {key} -subj /CN={file} -keyout {file}.key -out {file}.csr && \
                 openssl x509 -req -in {file}.csr -CA root.pem -CAkey root.key -CAcreateserial \
                 -days 2 -extfile ext -out {file}.pem && chmod 644 {file}.key"
            ),
        );
    }
}

impl Origin {
    fn start(world: &World, dir: PathBuf) -> Origin {
        let here = dir.display();
        fs::write(dir.join("page.html"), "<img src=image.svg><p>over TLS</p>").unwrap();
        let svg = "<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>";
        fs::write(dir.join("image.svg"), svg).unwrap();
        let site = |name: &str, tls: &str| {
            format!(
                "{name} {{\n {tls}\n header Cache-Control max-age=600\n header Alt-Svc \
                 \"h3=\\\":443\\\"\"\n root * {here}\n file_server\n log {{\n output file \
                 {here}/access.log\n }}\n}}\n"
            )
        };
        let tls = |file: &str, more: &str| format!("tls {here}/{file}.pem {here}/{file}.key{more}");
        let papers = " {\n client_auth {\n mode request\n }\n }";
        let names = "https://good.test, https://somebank.test, https://ws.test";
        let sites = [
            "{\n admin off\n auto_https off\n skip_install_trust\n}\n".to_owned(),
            "http://good.test {\n respond \"in clear\"\n}\n".to_owned(),
            site(names, &tls("right", "")),
            site("https://papers.test", &tls("right", papers)),
            site("https://wrong.test", &tls("wrong", "")),
        ];
        fs::write(dir.join("Caddyfile"), sites.concat()).unwrap();
        let run =
            format!("env HOME={here} caddy run --config {here}/Caddyfile --adapter caddyfile");
        let caddy = Daemon::start(&world.server, &run, &dir.join("caddy.log"));
        wait_for("the server", || {
            let at = format!("{SERVER}:443");
            try_connect(&world.server, &at).map(drop).map_err(|e| e.to_string())
        });
        Origin { dir, _caddy: caddy }
    }

    /// How often this was asked for.
    fn asked(&self, host: &str, uri: &str) -> usize {
        let log = fs::read_to_string(self.dir.join("access.log")).unwrap_or_default();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|it| it["request"]["host"] == host && it["request"]["uri"] == uri).count()
    }
}

/// Has the terminal's service open HTTPS as the page says, by its commands and its file.
fn inspect(plan: &mut Plan, programs: &Scratch, origin: &Path) {
    let words = "**How to switch it on.**";
    let directory = programs.sub("state").join("web").display().to_string();
    let program = programs.sub("bin").join("bentpipe-web").display().to_string();
    let user = USER.to_string();
    // Here he has no name.
    let script = block(WEB, words, "sh");
    let (_, script) =
        script.split_once('\n').filter(|(a, _)| a.starts_with("useradd ")).expect("it");
    let script = put(script, "-o bentpipe-web", &format!("-o {user}"));
    let as_user = format!("setpriv --reuid={user} --regid={user} --clear-groups --");
    let script = put(&script, "runuser -u bentpipe-web --", &as_user);
    let script = put(&script, "bentpipe-web ca ", &format!("{program} ca "));
    let script = put(&script, "/var/lib/bentpipe/web", &directory);
    let made = Command::new("sh").args(["-ec", &script]).output().expect("it runs");
    let said = String::from_utf8_lossy(&made.stdout);
    assert!(made.status.success() && said.contains("update-ca-certificates"), "{made:?}");

    let text = put(&example(words, programs), "/var/lib/bentpipe/web", &directory);
    plan.a.node.clear();
    plan.a.peer = "quic = \"refuse\"\n".to_owned();
    serve_text(&mut plan.a, &put(&text, "\"bentpipe-web\"", &format!("{user:?}")));
    let trust =
        format!("-web\", \"--trust\", {:?}]", origin.join("root.pem").display().to_string());
    plan.b.node = put(&plan.b.node, "-web\"]", &trust);
    plan.b.peer = put(&plan.b.peer, "ports = [80]", "ports = [80, 443]");
}

/// What curl gets, behind the status and the version of HTTP.
fn curl(world: &World, trust: &Path, more: &str, url: &str) -> String {
    let resolve: String = ["good", "somebank", "ws", "papers", "wrong"]
        .iter()
        .flat_map(|name| [80, 443].map(|port| format!(" --resolve {name}.test:{port}:{SERVER}")))
        .collect();
    let command = format!(
        "curl -sS --max-time 30 --cacert {} {resolve} {more} -w ' %{{http_code}} \
         %{{http_version}}' {url} 2>&1",
        trust.display()
    );
    String::from_utf8_lossy(&shell(&world.client, &command).stdout).into_owned()
}

#[test]
fn https_is_opened_where_the_operator_wants_it_and_kept_pushed_and_verified() {
    if !root() {
        return;
    }
    let files = Scratch::new("inspected-origin");
    let dir = files.sub("web");
    let issuer = NetNs::unique("bpe2e", "issuer").expect("a network namespace");
    issue(&issuer, &dir);
    let mut authority = PathBuf::new();
    let (world, programs) = world_with("web-inspect", |plan, programs| {
        inspect(plan, programs, &dir);
        authority = programs.sub("state").join("web/ca/ca.pem");
    });
    let origin = Origin::start(&world, dir);
    let (ours, theirs) = (authority.as_path(), &*origin.dir.join("root.pem"));
    let get = |trust: &Path, more: &str, url: &str| curl(&world, trust, more, url);
    let page = "https://good.test/page.html";

    // Opened: HTTP/2 to the host, kept, and what the page names is there before it is asked for.
    let got = get(ours, "--http2 -D -", page);
    assert!(got.contains("over TLS") && got.ends_with(" 200 2"), "{got}{}", world.a.log());
    assert!(!got.to_lowercase().contains("alt-svc"), "{got}");
    wait_for_count(&world.a, "pushed", 1);
    world.set_link_down(true);
    for (more, version) in [("--http2", "2"), ("--http1.1", "1.1")] {
        let got = get(ours, more, page);
        assert!(got.contains("over TLS") && got.ends_with(&format!(" 200 {version}")), "{got}");
    }
    assert!(get(ours, "", "https://good.test/image.svg").contains("<svg"));
    world.set_link_down(false);
    assert_eq!(
        [origin.asked("good.test", "/page.html"), origin.asked("good.test", "/image.svg")],
        [1; 2]
    );
    wait_for_count(&world.a, "inspected", 4);
    // What is kept of HTTPS is nothing of HTTP's.
    assert_eq!(get(ours, "", "http://good.test/page.html"), "in clear 200 1.1");
    assert_eq!(get(ours, "-H 'Host: other.test'", page), " 421 2");

    // A name on the list sees the server's own certificate.
    let bank = "https://somebank.test/page.html";
    assert!(get(theirs, "", bank).ends_with(" 200 2"), "{}", world.a.log());
    wait_for_count(&world.a, "bypassed", 1);

    // A server that is not who it should be: a page that says so, and nothing of its own.
    let got = get(ours, "", "https://wrong.test/page.html");
    assert!(got.contains("it is for another name") && got.ends_with(" 502 2"), "{got}");
    assert!(!got.contains("over TLS") && origin.asked("wrong.test", "/page.html") == 0, "{got}");
    wait_for_count(&world.b, "bad_certificates", 1);

    left_alone(&world, &origin, ours, theirs);
    browser(&world, &origin, ours);
    refuses_open_key(&programs);
}

/// What cannot be opened is tried once, and then passes as it is.
fn left_alone(world: &World, origin: &Origin, ours: &Path, theirs: &Path) {
    let ws = "--http1.1 -H 'Connection: upgrade' -H 'Upgrade: websocket'";
    for (name, more) in [("ws", ws), ("papers", "")] {
        let url = format!("https://{name}.test/page.html");
        let got = curl(world, ours, more, &url);
        assert!(got.contains(" 502 ") && got.contains("left alone"), "{got}");
        let got = curl(world, theirs, more, &url);
        assert!(got.contains("over TLS") && got.contains(" 200 "), "{name}: {got}");
        assert_eq!(origin.asked(&format!("{name}.test"), "/page.html"), 1);
    }
    // Who does not know our authority is not asked to a second time.
    let page = "https://good.test/page.html";
    must(&world.client, "ip address add 10.1.0.3/24 dev lan0");
    let other = "--interface 10.1.0.3";
    let got = curl(world, theirs, other, page);
    assert!(got.contains("certificate") && got.ends_with(" 000 0"), "{got}");
    wait_for("a name that is left alone", || {
        let got = curl(world, theirs, other, page);
        if got.ends_with(" 200 2") { Ok(()) } else { Err(got) }
    });
    assert!(curl(world, ours, "", page).ends_with(" 200 2"), "others are served as before");
    let socket = world.a.dir().join("admin.sock");
    let stats = Command::new(PROGRAM).args(["web", "stats", "--socket"]).arg(socket).output();
    let stats = String::from_utf8_lossy(&stats.expect("stats").stdout).into_owned();
    assert!(stats.contains("good.test") && stats.contains("10.1.0.3"), "{stats}");
    assert!(stats.contains("WebSocket") && stats.contains("papers.test"), "{stats}");
}

/// A browser that trusts our authority shows the page and its image.
fn browser(world: &World, origin: &Origin, ours: &Path) {
    let fingerprint = must(
        &world.client,
        &format!(
            "openssl x509 -in {} -pubkey -noout | openssl pkey -pubin -outform der | openssl dgst \
             -sha256 -binary | base64",
            ours.display()
        ),
    );
    let text = "<img src=image.svg><p id=a>waiting</p><script>addEventListener('load', () => {
        const width = document.images[0].naturalWidth;
        document.getElementById('a').innerText = `shown ${width}`;
        });</script>";
    fs::write(origin.dir.join("browser.html"), text).unwrap();
    let home = world.dir("browser");
    let shown = shell(
        &world.client,
        &format!(
            "HOME={0} timeout 60 chromium-headless-shell --no-sandbox --disable-gpu --dump-dom \
             --timeout=40000 --user-data-dir={0}/profile --host-resolver-rules='MAP *.test {SERVER}' \
             --ignore-certificate-errors-spki-list={1} https://good.test/browser.html",
            home.display(),
            fingerprint.trim()
        ),
    );
    let text = String::from_utf8_lossy(&shown.stdout);
    let inspected = service(&world.a).counters["inspected"];
    assert!(
        text.contains("shown 9"),
        "{text}{}{}",
        String::from_utf8_lossy(&shown.stderr),
        inspected
    );
    assert_eq!(origin.asked("good.test", "/browser.html"), 1);
}

/// The program says what is wrong with a key that others may read, and does not run.
fn refuses_open_key(programs: &Scratch) {
    let ca = programs.sub("state").join("web/ca");
    fs::set_permissions(ca.join("ca.key"), fs::Permissions::from_mode(0o640)).unwrap();
    let program = programs.sub("bin").join("bentpipe-web");
    let output = Command::new(program).arg("--inspect").arg(&ca).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("chmod 600"), "{said}");
}
