//! The queue pair state machine: all pairs of states, as reviewed text and against a device.

mod common;

use std::fmt::Write;

use common::node::{HEAP, HEAP_VA, rc_steps};
use common::wr::statuses;
use common::{Connection, Node, World};
use roce::engine::qp::states;
use verbs::{
    Access, Error, GidEntry, Mtu, Provider, QpAttr, QpAttrMask, QpId, QpState, QpType, Qpn, SendOp, WcStatus,
};

const STATES: [QpState; 7] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];
const ID: QpId = QpId(1);

fn names(mask: QpAttrMask) -> String {
    mask.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(" ")
}

#[test]
fn table_of_all_transitions_is_as_reviewed() {
    let mut text = String::new();
    for service in [QpType::Rc, QpType::Ud, QpType::Gsi] {
        for from in STATES {
            for to in STATES {
                let Some(edge) = states::edge(service, from, to) else { continue };
                write!(text, "{service:?} {from:?} -> {to:?}").unwrap();
                for (word, mask) in [("needs", edge.required), ("takes", edge.optional)] {
                    if !mask.is_empty() {
                        write!(text, "\n    {word} {}", names(mask)).unwrap();
                    }
                }
                text.push('\n');
            }
        }
    }
    let reviewed = include_str!("states.txt");
    if text != reviewed {
        let actual = std::env::temp_dir().join("roce-states.txt");
        std::fs::write(&actual, &text).unwrap();
        panic!("transitions differ from tests/states.txt; the actual ones are in {}", actual.display());
    }
}

/// Attributes that are all good.
fn good(peer: &Node, state: QpState) -> QpAttr {
    let [.., (rts, _)] = rc_steps(Qpn(9), peer.gids()[0], peer.mac, Connection::default());
    QpAttr { state, qkey: 5, ..rts }
}

/// A queue pair in a state, reached by legal steps.
fn in_state(service: QpType, state: QpState) -> World {
    let mut world = World::new();
    world.nodes[0].provider.create_qp(ID, Node::qp_init(service)).unwrap();
    let path: &[QpState] = match state {
        QpState::Reset => &[],
        QpState::Init => &[QpState::Init],
        QpState::Rtr => &[QpState::Init, QpState::Rtr],
        QpState::Rts | QpState::Sqe => &[QpState::Init, QpState::Rtr, QpState::Rts],
        QpState::Sqd => &[QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd],
        QpState::Err => &[QpState::Err],
    };
    let mut from = QpState::Reset;
    for to in path {
        let edge = states::edge(service, from, *to).unwrap();
        modify(&mut world, *to, edge.required).unwrap();
        from = *to;
    }
    if state == QpState::Sqe {
        let mut wr = world.nodes[0].wr(1, common::wr::SEND, common::node::HEAP, 1);
        wr.sges.clear();
        world.nodes[0].post(1, wr);
        world.run();
    }
    assert_eq!(world.nodes[0].state(1), state);
    world
}

fn modify(world: &mut World, to: QpState, mask: QpAttrMask) -> Result<(), Error> {
    let attr = good(&world.nodes[1], to);
    let now = world.now;
    world.nodes[0].provider.modify_qp(now, ID, &attr, mask | QpAttrMask::STATE)
}

#[test]
fn every_legal_transition_is_made_and_every_other_leaves_all_as_it_was() {
    for service in [QpType::Rc, QpType::Ud, QpType::Gsi] {
        for from in STATES {
            if service == QpType::Rc && from == QpState::Sqe {
                continue;
            }
            for to in STATES {
                let mut world = in_state(service, from);
                let before = world.nodes[0].provider.query_qp(ID).unwrap();
                let Some(edge) = states::edge(service, from, to) else {
                    assert_eq!(modify(&mut world, to, QpAttrMask::empty()), Err(Error::Transition));
                    assert_eq!(world.nodes[0].provider.query_qp(ID).unwrap(), before);
                    continue;
                };
                for missing in edge.required.iter() {
                    let result = modify(&mut world, to, edge.required - missing);
                    assert!(matches!(result, Err(Error::Invalid(_))), "{service:?} {from:?} -> {to:?}");
                }
                let foreign = QpAttrMask::all() - edge.required - edge.optional;
                let foreign = foreign - QpAttrMask::STATE - QpAttrMask::CUR_STATE;
                for extra in foreign.iter() {
                    let result = modify(&mut world, to, edge.required | extra);
                    assert!(
                        matches!(result, Err(Error::Invalid(_))),
                        "{service:?} {from:?} -> {to:?} {extra:?}"
                    );
                }
                assert_eq!(world.nodes[0].provider.query_qp(ID).unwrap(), before);
                modify(&mut world, to, edge.required).unwrap();
                assert_eq!(world.nodes[0].state(1), to);
            }
        }
    }
}

#[test]
fn attributes_read_back_as_they_were_set() {
    let world = in_state(QpType::Rc, QpState::Rts);
    let set = good(&world.nodes[1], QpState::Rts);
    let read = world.nodes[0].provider.query_qp(ID).unwrap();
    assert_eq!(read, QpAttr { cur_state: QpState::Rts, qkey: 0, ..set });
}

#[test]
fn values_out_of_range_are_refused_and_change_nothing() {
    type Spoil = fn(&mut QpAttr);
    let rtr: [Spoil; 9] = [
        |a| a.dest_qpn = Qpn(1 << 24),
        |a| a.rq_psn = 1 << 24,
        |a| a.max_dest_rd_atomic = 17,
        |a| a.min_rnr_timer = 32,
        |a| a.av.sgid_index = 5,
        |a| a.av.sgid_index = 1,
        |a| a.av.dgid = verbs::Gid::default(),
        |a| a.av.dmac = device_model::net::MacAddr::BROADCAST,
        |a| a.av.sgid_index = 255,
    ];
    let rts: [Spoil; 5] = [
        |a| a.sq_psn = 1 << 24,
        |a| a.timeout = 32,
        |a| a.retry_cnt = 8,
        |a| a.rnr_retry = 8,
        |a| a.max_rd_atomic = 17,
    ];
    let init: [Spoil; 3] = [|a| a.port = 0, |a| a.port = 2, |a| a.pkey_index = 1];
    for (from, to, spoils) in [
        (QpState::Reset, QpState::Init, &init[..]),
        (QpState::Init, QpState::Rtr, &rtr[..]),
        (QpState::Rtr, QpState::Rts, &rts[..]),
    ] {
        for (i, spoil) in spoils.iter().enumerate() {
            let mut world = in_state(QpType::Rc, from);
            let before = world.nodes[0].provider.query_qp(ID).unwrap();
            let mut attr = good(&world.nodes[1], to);
            spoil(&mut attr);
            let mask = states::edge(QpType::Rc, from, to).unwrap().required | QpAttrMask::STATE;
            let result = world.modify(0, 1, &attr, mask);
            assert!(matches!(result, Err(Error::Invalid(_))), "{to:?} {i}");
            assert_eq!(world.nodes[0].provider.query_qp(ID).unwrap(), before);
        }
    }
}

#[test]
fn path_mtu_above_the_links_is_refused() {
    for (link, active) in [(1500, Mtu::B1024), (2200, Mtu::B2048), (4200, Mtu::B4096), (9000, Mtu::B4096)] {
        let node = Node::with(1, link, roce::Config::default());
        assert_eq!(node.provider.limits().active_mtu, active);
    }
    let mut world = in_state(QpType::Rc, QpState::Init);
    world.nodes[0] = Node::with(1, 1500, roce::Config::default());
    world.nodes[0].provider.create_qp(ID, Node::qp_init(QpType::Rc)).unwrap();
    modify(&mut world, QpState::Init, QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS)
        .unwrap();
    let mut attr = good(&world.nodes[1], QpState::Rtr);
    let mask = states::edge(QpType::Rc, QpState::Init, QpState::Rtr).unwrap().required | QpAttrMask::STATE;
    attr.path_mtu = Mtu::B2048;
    assert!(matches!(world.modify(0, 1, &attr, mask), Err(Error::Invalid(_))));
    attr.path_mtu = Mtu::B1024;
    world.modify(0, 1, &attr, mask).unwrap();
}

#[test]
fn wrong_belief_about_the_current_state_is_refused() {
    let mut world = in_state(QpType::Rc, QpState::Rts);
    let attr = QpAttr { cur_state: QpState::Sqd, access: Access::empty(), ..QpAttr::default() };
    let mask = QpAttrMask::CUR_STATE | QpAttrMask::ACCESS_FLAGS;
    assert!(matches!(world.modify(0, 1, &attr, mask), Err(Error::Invalid(_))));
}

#[test]
fn unsupported_attributes_are_named() {
    let mut world = in_state(QpType::Rc, QpState::Rts);
    let attr = good(&world.nodes[1], QpState::Rts);
    let result = world.modify(0, 1, &attr, QpAttrMask::ALT_PATH);
    assert!(matches!(result, Err(Error::Unsupported(_))));
}

#[test]
fn address_is_own_until_the_last_of_its_rows_is_gone() {
    let mut world = World::new();
    world.connect(1, Connection::default());
    let gid = world.nodes[1].gids()[0];
    world.nodes[1].provider.set_gid(GidEntry { index: 5, gid }).unwrap();
    world.nodes[1].provider.clear_gid(0).unwrap();
    for (wr_id, status) in [(1, WcStatus::Success), (2, WcStatus::RetryExcErr)] {
        let op = SendOp::Write { addr: HEAP_VA, rkey: world.nodes[1].keys.rkey, imm: None };
        world.nodes[0].send(1, wr_id, op, HEAP, 10);
        world.run();
        assert_eq!(statuses(&world.nodes[0].completions()), [(wr_id, status)]);
        world.nodes[1].provider.clear_gid(5).unwrap();
    }
}
