//! What is in the capture of a run.

use bentpipe_lab::emulate::{CaptureOptions, Emulator, EmulatorOptions};
use channel::ChannelConfig;
use os::netns::root;
use units::{Duration, Ratio};

use crate::emulator::wire::{Kind, Scratch, Wire, wait_until, wait_until_empty};

/// The packets of a pcapng file: their interface, bytes and comment.
fn packets(mut file: &[u8]) -> Vec<(u32, Vec<u8>, Option<String>)> {
    let word = |b: &[u8], at: usize| u32::from_le_bytes(b[at..at + 4].try_into().unwrap());
    let mut found = Vec::new();
    while !file.is_empty() {
        let (block, rest) = file.split_at(word(file, 4) as usize);
        file = rest;
        if word(block, 0) != 6 {
            continue;
        }
        let kept = word(block, 20) as usize;
        let mut options = &block[28 + kept.next_multiple_of(4)..block.len() - 4];
        let mut comment = None;
        while options[..2] != [0, 0] {
            let len = usize::from(u16::from_le_bytes([options[2], options[3]]));
            if options[..2] == [1, 0] {
                comment = Some(String::from_utf8(options[4..4 + len].to_vec()).unwrap());
            }
            options = &options[4 + len.next_multiple_of(4)..];
        }
        found.push((word(block, 8), block[28..28 + kept].to_vec(), comment));
    }
    found
}

#[test]
fn a_capture_holds_what_crossed_and_on_request_what_did_not() {
    if !root() {
        return;
    }
    let file = Scratch::file("pcapng");
    let (wire, [left, right]) = Wire::lay(Kind::Tap, "pcap");
    let lossy = ChannelConfig {
        loss: Ratio::from_f64(0.2),
        delay: Duration::from_millis(10),
        ..ChannelConfig::default()
    };
    let capture = CaptureOptions { file: file.0.clone(), drops: true, snap: 60 };
    let options = EmulatorOptions { capture: Some(capture), ..EmulatorOptions::default() };
    let link = Emulator::start(left, right, lossy.clone(), lossy, options).unwrap();
    wire.sender().send(300, 700);
    wait_until(&link, |c| c.delivered.packets + c.lost_random.packets == 300);
    wait_until_empty(&link);
    let report = link.stop().unwrap();
    let bytes = std::fs::read(&file.0).unwrap();
    let up: Vec<_> = packets(&bytes).into_iter().filter(|(to, ..)| *to == 1).collect();
    let (crossed, lost): (Vec<_>, Vec<_>) = up.iter().partition(|(.., comment)| comment.is_none());
    assert_eq!(crossed.len() as u64, report.up.counters.delivered.packets);
    assert_eq!(lost.len() as u64, report.up.counters.lost_random.packets);
    assert!(lost.iter().all(|(.., comment)| comment.as_deref() == Some("lost: random")));
    let ours = up.iter().filter(|(_, bytes, _)| bytes.get(34..42) == Some(b"bentpipe"));
    assert_eq!(ours.count(), 300);
    assert!(up.iter().all(|(_, bytes, _)| bytes.len() <= 60));
}

#[test]
fn a_capture_that_cannot_be_written_is_refused_with_its_name() {
    if !root() {
        return;
    }
    let (_wire, [left, right]) = Wire::lay(Kind::Tap, "nofile");
    let capture = CaptureOptions { file: "/no/such/place/x.pcapng".into(), drops: false, snap: 0 };
    let options = EmulatorOptions { capture: Some(capture), ..EmulatorOptions::default() };
    let config = ChannelConfig::default();
    let refused = Emulator::start(left, right, config.clone(), config, options);
    let message = refused.err().unwrap().to_string();
    assert!(message.contains("/no/such/place/x.pcapng"), "{message}");
}
