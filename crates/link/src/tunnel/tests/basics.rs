use super::*;

#[test]
fn two_packets_establish_and_the_third_confirms() {
    let mut w = World::new();
    w.a.tunnel.connect(w.now);
    w.run();
    let kinds: Vec<_> = w.log.iter().map(|p| p.bytes[0]).collect();
    assert_eq!(kinds[..2], [0x01, 0x02]);
    assert_eq!(kinds.len(), 3, "the third is the empty packet that the initiator owes");
    for node in [&w.a, &w.b] {
        assert!(matches!(
            node.events[0],
            Event::Established { resumed: false, cipher: Cipher::Aes256Gcm, .. }
        ));
    }
    w.assert_talking();
}
