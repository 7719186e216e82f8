//! Hosts whose budget for the month is used up: what becomes of their connections, and what is
//! checked.

use std::collections::BTreeSet;
use std::net::IpAddr;

use dial::books::Host;
use link::session::ClassId;
use relay::{FlowId, StoppedHosts};

use super::{World, client};
use crate::check::Failure;

impl World<'_> {
    /// Tells the relay which hosts may not use what costs. True: they are others.
    pub(super) fn stop_hosts(&mut self) -> bool {
        let addr = |host: &Host| match host {
            Host::Addr(addr) => Some(*addr),
            Host::Node | Host::Others => None,
        };
        let hosts: BTreeSet<IpAddr> =
            self.line.manager.stopped_hosts().iter().filter_map(addr).collect();
        let mut classes = if self.line.beside_carries() { 0 } else { u32::MAX };
        if self.plan.bound == Some(1) {
            classes &= !(1 << ClassId::BULK.index());
        }
        let stopped = StoppedHosts { hosts, classes };
        #[cfg(test)]
        if self.forgets_hosts {
            return false;
        }
        if stopped == self.stopped {
            return false;
        }
        self.trace(|| format!("{stopped:?}"));
        self.stopped.clone_from(&stopped);
        let node = &mut self.nodes[0];
        node.relay.stop_hosts(self.now, node.peer, stopped);
        true
    }

    /// What a host has sent and was given.
    fn moved_by(&self, addr: IpAddr) -> u64 {
        let its = self.talks.iter().enumerate().filter(|(index, _)| client(*index).ip() == addr);
        its.filter_map(|(_, talk)| talk.hosts[0].as_ref()).map(|h| h.taken + h.written).sum()
    }

    /// While a host's sum is not below its budget nothing of its moves, where nothing is free.
    pub(super) fn check_hosts(&mut self) -> Result<(), Failure> {
        let budget = self.plan.manager.host_budgets.first().map(|(_, budget)| *budget);
        let checked = !self.healed && self.plan.beside.is_none();
        let Some(budget) = budget.filter(|_| checked) else { return Ok(()) };
        let (wall, currency) = (self.wall(), self.plan.manager.currency);
        let addrs: BTreeSet<IpAddr> = (0..self.talks.len()).map(|i| client(i).ip()).collect();
        for addr in addrs {
            let host = Host::Addr(addr);
            let spent = self.line.books.spent_by(wall, currency, host);
            let moved = self.moved_by(addr);
            if spent < budget.stop {
                self.moved_at_stop.remove(&addr);
            } else if *self.moved_at_stop.entry(addr).or_insert(moved) != moved {
                return self.fail(format!("bytes of {addr} move, which has spent {spent}"));
            }
        }
        Ok(())
    }

    pub(super) fn is_stopped(&self, index: usize) -> bool {
        self.stopped.hosts.contains(&client(index).ip())
    }

    /// The end of a connection whose host has no money.
    pub(super) fn cut(&mut self, node: usize, flow: FlowId) -> Result<(), Failure> {
        let Some(index) = self.nodes[node].flows.remove(&flow) else { return Ok(()) };
        let talk = &mut self.talks[index];
        talk.hosts[node].iter_mut().for_each(|host| host.flow = None);
        if node == 1 {
            self.nodes[1].relay.closed(self.now, flow);
            return match self.talks[index].cut {
                true => Ok(()),
                false => self.fail(format!("connection {index} is reset, and nobody stopped it")),
            };
        }
        talk.cut = true;
        self.trace(|| format!("connection {index} is cut"));
        match self.is_stopped(index) {
            true => Ok(()),
            false => self.fail(format!("connection {index} is cut, and its host is not stopped")),
        }
    }
}
