//! A real browser in the ship's LAN, with the README's files: a page and the objects that its
//! script asks for at once, over HTTP/1.1, HTTP/2 and HTTP/3, which is QUIC.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::harness::{Daemon, must, root, shell, wait_for};
use crate::readme::{SERVER, Sea, check_that_all_passed};
use crate::tcp::{pattern, try_connect};

/// Objects of the page, of 1 to 30 kB, that nothing compresses.
const OBJECTS: usize = 30;

/// A page whose text says "loaded 30" once all came whole.
fn write_page(dir: &Path) {
    let mut lengths = Vec::new();
    for n in 0..OBJECTS {
        let text: String = pattern(n as u64, 1_000 * (n + 1))
            .iter()
            .map(|byte| char::from(b'a' + byte % 26))
            .collect();
        lengths.push(text.len());
        fs::write(dir.join(format!("object-{n}.txt")), text).expect("an object");
    }
    let page = format!(
        "<html><body>waiting<script>
        const lengths = {lengths:?};
        let loaded = 0;
        lengths.forEach((length, n) => fetch(`object-${{n}}.txt`).then(r => r.text()).then(text => {{
            if (text.length == length) document.body.innerText = `loaded ${{++loaded}}`;
        }}));
        </script></body></html>"
    );
    fs::write(dir.join("index.html"), page).expect("a page");
}

#[test]
fn a_browser_loads_a_page_over_http_1_2_and_3_with_the_readmes_files() {
    if !root() {
        return;
    }
    let sea = Sea::new();
    let dir = sea.dir.sub("web");
    let (here, at) = (dir.display(), SERVER[0]);
    write_page(&dir);
    must(
        &sea.server,
        &format!(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 \
             -subj /CN=web.test -addext subjectAltName=DNS:web.test \
             -keyout {here}/key.pem -out {here}/cert.pem"
        ),
    );
    let fingerprint = must(
        &sea.server,
        &format!(
            "openssl x509 -in {here}/cert.pem -pubkey -noout | openssl pkey -pubin -outform der | \
             openssl dgst -sha256 -binary | base64"
        ),
    );
    let site = |name: &str, tls: &str| {
        format!(
            "{name} {{\n {tls}\n root * {here}\n file_server\n log {{\n output file \
             {here}/access.log\n }}\n}}\n"
        )
    };
    let sites = [
        "{\n admin off\n auto_https off\n skip_install_trust\n}\n".to_owned(),
        site("http://web.test:80", ""),
        site("https://web.test:443", &format!("tls {here}/cert.pem {here}/key.pem")),
    ];
    fs::write(dir.join("Caddyfile"), sites.concat()).expect("a file");
    let _server = Daemon::start(
        &sea.server,
        &format!("env HOME={here} caddy run --config {here}/Caddyfile --adapter caddyfile"),
        &dir.join("server.log"),
    );
    wait_for("the server", || {
        try_connect(&sea.server, &format!("{at}:443")).map(drop).map_err(|e| e.to_string())
    });
    for (n, (url, more)) in [
        ("http://web.test/", ""),
        ("https://web.test/", "--disable-quic"),
        ("https://web.test/", "--origin-to-force-quic-on=web.test:443"),
    ]
    .into_iter()
    .enumerate()
    {
        let browser = format!(
            "HOME={here} timeout 60 chromium-headless-shell --no-sandbox --disable-gpu --dump-dom \
             --virtual-time-budget=50000 --user-data-dir={here}/profile-{n} \
             --host-resolver-rules='MAP web.test {at}' \
             --ignore-certificate-errors-spki-list={} {more} {url}",
            fingerprint.trim()
        );
        let shown = shell(&sea.host, &browser);
        let page = String::from_utf8_lossy(&shown.stdout);
        assert!(
            page.contains(&format!("loaded {OBJECTS}")),
            "{more} {url}: {page}{}",
            String::from_utf8_lossy(&shown.stderr)
        );
    }
    let log = fs::read_to_string(dir.join("access.log")).expect("the server's log");
    let spoken: BTreeSet<&str> = ["HTTP/1.1", "HTTP/2.0", "HTTP/3.0"]
        .into_iter()
        .filter(|version| log.contains(&format!("\"proto\":\"{version}\"")))
        .collect();
    assert_eq!(spoken.len(), 3, "{spoken:?}");
    check_that_all_passed(&sea);
}
