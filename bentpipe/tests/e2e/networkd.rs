//! A hostile modem, and the real systemd-networkd on the ship: its DHCP client takes the routes
//! that the modem pushes (option 121, RFC 3442), it follows router advertisements (RFC 4191), and
//! at its restart it removes what it has not made, from all interfaces that it manages.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use os::netns::NetNs;

use crate::block::{Restless, bentpipe, in_clear, watch};
use crate::harness::{Daemon, World, install_script, must, root, said, wait_for, wait_long_for};
use crate::tcp::{SERVER, check_echo, listen};

const NETWORKD: &str = "/lib/systemd/systemd-networkd";

/// The ship's, who manages all interfaces, as a file for `*` does. The gateway's address stays.
const SHIP: &str = "
[Match]
Name=sat0
[Network]
KeepConfiguration=static
DHCP=ipv4
IPv6AcceptRA=yes
IPForward=yes
[DHCPv4]
UseRoutes=yes
UseGateway=yes
";
const TUNNEL: &str = "
[Match]
Name=bp0*
[Network]
LinkLocalAddressing=no
IPv6AcceptRA=no
ConfigureWithoutCarrier=yes
";
/// The modem's: 0.0.0.0/1, 128.0.0.0/1, 10.2.0.0/25 and 10.2.0.2/32 by way of itself.
const MODEM: &str = r"
[Match]
Name=sat0
[Network]
Address=192.0.2.250/24
KeepConfiguration=static
DHCPServer=yes
IPv6SendRA=yes
IPForward=yes
[DHCPServer]
PoolOffset=100
PoolSize=20
SendOption=121:string:\x01\x00\xc0\x00\x02\x02\x01\x80\xc0\x00\x02\x02\x19\x0a\x02\x00\x00\xc0\x00\x02\x02\x20\x0a\x02\x00\x02\xc0\x00\x02\x02
[IPv6SendRA]
RouterLifetimeSec=1800
[IPv6RoutePrefix]
Route=fd02::2/128
LifetimeSec=3600
";

/// networkd in a namespace, with these files and a system of its own around it. It waits for udev
/// unless /sys is read only, as in a container.
fn networkd(world: &World, ns: &NetNs, name: &str, files: &[&str]) -> Daemon {
    let dir = world.dir(&format!("networkd-{name}"));
    let mut script = "#!/bin/sh\nset -e\nmount --make-rprivate /\n\
                      mount -t sysfs -o ro sysfs /sys\nmount -t tmpfs tmpfs /run\n\
                      mkdir -p /run/systemd/network /run/systemd/netif/links \
                      /run/systemd/netif/leases /run/systemd/netif/lldp\n\
                      chown -R systemd-network: /run/systemd/netif\n"
        .to_owned();
    for (n, text) in files.iter().enumerate() {
        let path = dir.join(format!("{n}0.network"));
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        script += &format!("cp {} /run/systemd/network/\n", path.display());
    }
    let path = dir.join("run");
    let settings = "env SYSTEMD_LOG_LEVEL=info SYSTEMD_LOG_TARGET=console";
    install_script(&format!("{script}exec {settings} {NETWORKD}\n"), &path);
    Daemon::start(ns, &format!("unshare --mount {}", path.display()), &dir.join("log"))
}

/// Waits until the ship has the routes that the modem pushes, in both families.
fn wait_for_pushed_routes(world: &World) {
    wait_long_for("routes of the modem's", Duration::from_secs(90), || {
        let routes = must(&world.gwa, "ip route; ip -6 route");
        let all = ["10.2.0.2 via", "10.2.0.0/25 via", "0.0.0.0/1 via", "fd02::2 via"];
        let done = all.iter().all(|route| routes.contains(route));
        let logs = ["ship", "modem"].map(|name| {
            let log = world.dir(&format!("networkd-{name}")).join("log");
            fs::read_to_string(log).unwrap_or_default()
        });
        done.then_some(()).ok_or_else(|| format!("{routes}\n{}", logs.join("\n")))
    });
}

#[test]
fn with_block_nothing_leaves_in_clear_by_routes_of_dhcp_and_advertisements_nor_at_networkds_restart()
 {
    if !root() {
        return;
    }
    let mut world = World::with(|plan| plan.clear_routes = true);
    watch(&world);
    let host = Restless::new(&world);
    let listener = listen(&world.server, SERVER);
    let safe = |world: &World, when: &str| {
        host.wait(60);
        assert_eq!(in_clear(world), 0, "{when}");
    };
    let rules = |world: &World| {
        let all = "ip rule; ip -6 rule; ip route show table all proto 143; \
                   ip -6 route show table all proto 143";
        let text = must(&world.gwa, all);
        let ours = text.lines().filter(|l| !l.contains("lookup") || l.contains("proto 143"));
        ours.map(|l| l.replace(" linkdown", "")).collect::<Vec<_>>().join("\n")
    };
    let before = rules(&world);
    // What is removed of ours, as the kernel tells it.
    let monitor = world.dir("monitor").join("log");
    let _monitor = Daemon::start(&world.gwa, "ip -ts monitor rule", &monitor);
    let removed = || {
        let told = fs::read_to_string(&monitor).unwrap_or_default();
        told.lines().filter(|l| l.contains("Deleted") && l.contains("proto 143")).count()
    };
    let _modem = networkd(&world, &world.gwb, "modem", &[MODEM]);
    let mut ship = networkd(&world, &world.gwa, "ship", &[SHIP, TUNNEL]);
    wait_for_pushed_routes(&world);
    safe(&world, "with routes pushed by DHCP and router advertisements");
    check_echo(&world.client, &listener);

    for _ in 0..2 {
        ship.stop();
        safe(&world, "while networkd is stopped");
        let before_restart = removed();
        ship = networkd(&world, &world.gwa, "ship", &[SHIP, TUNNEL]);
        wait_for_pushed_routes(&world);
        if removed() == before_restart {
            // systemd 252 remembers foreign rules in a namespace and removes none, where others do.
            // So they are removed as it would: each by a message of its own, whoever made it but
            // the kernel.
            println!("this networkd removed no rules: they are removed in its name");
            must(&world.gwa, "ip rule flush protocol 143; ip -6 rule flush protocol 143");
        }
        wait_for("rules to be removed", || match removed() - before_restart {
            n if n > 10 => Ok(()),
            n => Err(format!("{n} were")),
        });
        wait_for("rules and routes", || {
            let now = rules(&world);
            (now == before).then_some(()).ok_or(format!("{before}\nbecame\n{now}"))
        });
        safe(&world, "after the restart of networkd");
        check_echo(&world.client, &listener);
    }

    // The same while no gateway runs, with a networkd that leaves the rules: nobody would put them
    // back.
    world.a.kill();
    safe(&world, "after a kill");
    ship.stop();
    let _ship = networkd(&world, &world.gwa, "ship", &[SHIP, TUNNEL]);
    wait_for_pushed_routes(&world);
    safe(&world, "after a kill and the restart of networkd");

    // Released, the pushed routes lead out, which also shows that the counters count.
    let down = bentpipe(&world.a, &world.gwa, "down FILE");
    assert!(down.status.success(), "{}", said(&down));
    wait_for("traffic in clear", || (in_clear(&world) > 0).then_some(()).ok_or("none".into()));
}
