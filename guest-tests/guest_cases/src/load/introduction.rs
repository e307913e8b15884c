//! How two sides learn each other's keys and queue pair numbers: cards in datagrams between the management queue pairs.
//!
//! Datagrams get lost, so a card is sent again until the other side says that it has heard that this one is connected;
//! and whoever gets a card that does not say so answers it.

use alloc::string::String;
use alloc::vec::Vec;

use pvrdma_driver::{Buffer, Context, Cq, Driver, Mr, Qp, QpSizes, Recv, SendWork};
use pvrdma_spec::PAGE_SIZE;
use pvrdma_spec::attr::QpAttr;
use pvrdma_spec::queue::{Av, Sge, UdOperands, WrOpcode};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::layout::MAX_STREAMS;
use crate::Machine;
use crate::node::{cannot, link_local, mask, state};

/// GSI of `enum pvrdma_qp_type`.
const GSI: u8 = 1;
/// Number and key of every management queue pair (IBTA 10.2.4 and 10.2.5).
const GSI_NUMBER: u32 = 1;
const GSI_KEY: u32 = 0x8001_0000;
const LOCAL_WRITE: u32 = 1;
/// Bytes before a datagram.
const GRH: u32 = 40;
/// Receives that are posted.
const RECEIVES: u64 = 8;
/// Steps without an answer after which a card is sent again.
const STEPS: u32 = 200;
const MAGIC: u64 = u64::from_be_bytes(*b"VRBNLOAD");

/// How far a side is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
enum Stage {
    Alone = 0,
    Connected = 1,
    PeerConnected = 2,
}

/// What the other side must know.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Card {
    magic: u64,
    /// [`Stage`] of the sender.
    stage: u32,
    /// [`Stage`] of the receiver, as far as the sender has heard.
    heard: u32,
    pub rkey: u32,
    reserved: u32,
    pub qpns: [u32; MAX_STREAMS as usize],
}

impl Card {
    /// A card of a side that has heard nothing yet.
    pub fn new(rkey: u32, numbers: impl Iterator<Item = u32>) -> Self {
        let mut card = Self { magic: MAGIC, rkey, ..Self::default() };
        card.qpns.iter_mut().zip(numbers).for_each(|(qpn, number)| *qpn = number);
        card
    }
}

/// The exchange.
#[derive(Debug)]
pub struct Introduction<'a, M> {
    driver: &'a Driver<M>,
    mr: Mr,
    cq: Cq,
    qp: Qp,
    /// A page for what is sent, then one for each receive.
    pages: Buffer,
    peer: [u8; 6],
    stage: Stage,
    /// What this side sends.
    own: Card,
    theirs: Option<Card>,
    sending: bool,
    steps: u32,
}

impl<'a, M: Machine> Introduction<'a, M> {
    /// Opens the management queue pair and sends the first card. The address must be bound.
    pub fn new(driver: &'a Driver<M>, peer: [u8; 6], card: Card) -> Result<Self, String> {
        let pd =
            driver.create_pd(Context::KERNEL).map_err(cannot("create the kernel's protection domain"))?;
        let mr = driver.register_all(pd, LOCAL_WRITE).map_err(cannot("register all memory"))?;
        let cq = driver.create_cq(Context::KERNEL, 64).map_err(cannot("create the kernel's queue"))?;
        let sizes = QpSizes { send_wr: 4, recv_wr: 16, send_sge: 1, recv_sge: 1 };
        let qp = driver.create_qp(pd, GSI, (&cq, &cq), None, sizes).map_err(cannot("create the GSI"))?;
        bring_up(driver, &qp)?;
        let pages = Buffer::new(driver.platform(), (1 + RECEIVES) * PAGE_SIZE);
        let mut introduction = Self {
            driver,
            mr,
            cq,
            qp,
            pages,
            peer,
            stage: Stage::Alone,
            own: card,
            theirs: None,
            sending: false,
            steps: 0,
        };
        (1..=RECEIVES).try_for_each(|page| introduction.post_recv(page))?;
        introduction.send()?;
        Ok(introduction)
    }

    /// The other side and its card, until [`Introduction::connected`].
    pub fn news(&self) -> Option<([u8; 6], Card)> {
        self.theirs.filter(|_| self.stage == Stage::Alone).map(|card| (self.peer, card))
    }

    /// This side has connected all its queue pairs.
    pub fn connected(&mut self) {
        self.stage = Stage::Connected;
        self.hear();
    }

    /// Whether the other side has.
    pub fn peer_is_connected(&self) -> bool {
        self.stage == Stage::PeerConnected
    }

    /// Takes what has arrived and sends what is due.
    pub fn step(&mut self) -> Result<(), String> {
        let completions: Vec<_> = core::iter::from_fn(|| self.driver.poll(&self.cq)).collect();
        let mut answer = false;
        for cqe in completions {
            if cqe.wr_id == 0 {
                self.sending = false;
                continue;
            }
            if let Some(card) = self.read(cqe.wr_id, cqe.byte_len) {
                self.theirs = Some(card);
                self.hear();
                answer |= card.heard < self.stage as u32;
            }
            self.post_recv(cqe.wr_id)?;
        }
        self.steps += 1;
        let unheard = self.theirs.is_none_or(|card| card.heard < Stage::PeerConnected as u32);
        if answer || unheard && self.steps.is_multiple_of(STEPS) {
            self.send()?;
        }
        Ok(())
    }

    fn hear(&mut self) {
        let peer = self.theirs.map_or(0, |card| card.stage);
        if self.stage == Stage::Connected && peer >= Stage::Connected as u32 {
            self.stage = Stage::PeerConnected;
        }
    }

    /// The card in a receive, if it is one.
    fn read(&self, page: u64, length: u32) -> Option<Card> {
        let mut card = Card::new_zeroed();
        if length < GRH + size_of::<Card>() as u32 {
            return None;
        }
        self.pages.read(self.driver.platform(), page * PAGE_SIZE + u64::from(GRH), card.as_mut_bytes());
        (card.magic == MAGIC).then_some(card)
    }

    fn element(&self, page: u64, length: u32) -> Sge {
        Sge { addr: self.pages.address(page * PAGE_SIZE), length, lkey: self.mr.lkey }
    }

    fn post_recv(&self, page: u64) -> Result<(), String> {
        let work = Recv::new(page, &[self.element(page, GRH + 256)]);
        if self.driver.post_recv(&self.qp, &work) { Ok(()) } else { Err("The GSI takes no receive".into()) }
    }

    /// Sends the card, unless one is on its way.
    fn send(&mut self) -> Result<(), String> {
        const SIGNALED: u32 = 2;
        if self.sending {
            return Ok(());
        }
        self.own.stage = self.stage as u32;
        self.own.heard = self.theirs.map_or(0, |card| card.stage);
        self.pages.write(self.driver.platform(), 0, self.own.as_bytes());
        let av = Av {
            port_pd: 1 << 24,
            dgid: link_local(self.peer),
            hop_limit: 64,
            dmac: self.peer,
            ..Av::new_zeroed()
        };
        let operands = UdOperands { remote_qpn: GSI_NUMBER, remote_qkey: GSI_KEY, av };
        let elements = [self.element(0, size_of::<Card>() as u32)];
        let work = SendWork::new(0, WrOpcode::Send, SIGNALED, &elements).operands(&operands);
        self.sending = self.driver.post_send(&self.qp, &work);
        if self.sending { Ok(()) } else { Err("The GSI takes no send".into()) }
    }
}

fn bring_up<M: Machine>(driver: &Driver<M>, qp: &Qp) -> Result<(), String> {
    let mut attrs = QpAttr::new_zeroed();
    (attrs.port_num, attrs.qkey) = (1, GSI_KEY);
    let steps = [
        (state::INIT, mask::PKEY_INDEX | mask::PORT | mask::QKEY),
        (state::RTR, 0),
        (state::RTS, mask::SQ_PSN),
    ];
    for (next, more) in steps {
        attrs.qp_state = next;
        driver.modify_qp(qp, mask::STATE | more, &attrs).map_err(cannot("bring up the GSI"))?;
    }
    Ok(())
}
