//! Processes that are so busy that the device polls them, and others that wait for notifications.

use alloc::format;
use alloc::string::String;

use pvrdma_driver::{Cq, Driver, Qp, QpSizes, SendWork};
use pvrdma_spec::queue::{RdmaOperands, WrOpcode};

use crate::node::{Node, VA, cannot};
use crate::{Machine, Outcome};

/// `IB_SEND_SIGNALED`
const SIGNALED: u32 = 2;
/// Requests that must not stop the CPU, and empty polls.
const REQUESTS: u32 = 100;
/// Times that is tried: the host interrupts a CPU now and then, and may want its processors for something else.
const ATTEMPTS: u32 = 3000;
/// Looks at a queue before the CPU rests in between.
const SPINS: u32 = 1_000_000;
/// Rests before something is taken to be lost.
const PATIENCE: u32 = 100_000;
/// Rounds of the slice of [`exchange`] that is a case.
const ROUNDS: u32 = 2000;
/// Completion queues of the program that waits.
const QUEUES: usize = 3;
/// Rounds after which that program pauses, and requests of the other one meanwhile, so that the device begins to poll.
const ROUNDS_PER_PAUSE: u32 = 100;
const REQUESTS_PER_PAUSE: u32 = 300;

/// A WRITE of eight bytes from one end of the memory to the other.
fn write<M>(node: &Node<'_, M>, wr_id: u64) -> SendWork
where
    M: Machine,
{
    let remote = RdmaOperands { remote_addr: VA + 4096, rkey: node.mr.rkey, reserved: 0 };
    SendWork::new(wr_id, WrOpcode::RdmaWrite, SIGNALED, &[node.sge(0, 8)]).operands(&remote)
}

/// Waits until `found` has something.
fn wait<M: Machine, T>(
    node: &Node<'_, M>,
    what: &str,
    mut found: impl FnMut() -> Option<T>,
) -> Result<T, String> {
    let machine = node.driver.platform();
    for _ in 0..PATIENCE {
        for _ in 0..SPINS {
            if let Some(found) = found() {
                return Ok(found);
            }
            machine.spin();
        }
        machine.settle();
    }
    Err(format!("No {what} came"))
}

/// Posts a request and polls until it is complete.
fn post_and_poll<M: Machine>(node: &Node<'_, M>, qp: &Qp, cq: &Cq) -> Outcome {
    if !node.driver.post_send(qp, &write(node, 1)) {
        return Err("The send queue is full".into());
    }
    let done = wait(node, "completion", || node.driver.poll(cq))?;
    if done.status == 0 { Ok(()) } else { Err(format!("A WRITE ended with status {}", done.status)) }
}

/// A process that posts one request after the other, and polls when there is nothing, stops no CPU after a while.
pub fn busy_process_stops_no_cpu<M: Machine>(driver: &Driver<M>) -> Outcome {
    let machine = driver.platform();
    let node = Node::new(driver)?;
    let pair = node.pair()?;
    let mut least = u32::MAX;
    for _ in 0..ATTEMPTS {
        let Some(before) = machine.exits() else { return node.close(pair) };
        for _ in 0..REQUESTS {
            if driver.poll(&node.cq).is_some() {
                return Err("A completion came of nothing".into());
            }
            post_and_poll(&node, &pair[0], &node.cq)?;
        }
        let stops = machine.exits().unwrap_or(0).wrapping_sub(before);
        least = least.min(stops);
        // Where asking stops the CPU, that is once.
        if least <= 1 {
            return node.close(pair);
        }
    }
    Err(format!("{REQUESTS} requests and empty polls stopped the CPU {least} times at best"))
}

/// A slice of [`exchange`].
pub fn slice<M: Machine>(driver: &Driver<M>) -> Outcome {
    exchange(driver, ROUNDS)
}

/// Two programs of one process, which share its doorbell page: one polls, the other arms its queues, finds them empty and
/// waits for a notification, in which time the first one goes on to poll and hides what was armed. No notification is
/// lost.
pub fn exchange<M: Machine>(driver: &Driver<M>, rounds: u32) -> Outcome {
    let node = Node::new(driver)?;
    let pair = node.pair()?;
    let queues = make_queues(&node)?;
    while driver.next_notification().is_some() {}
    let outcome = run(&node, &pair[0], &queues, rounds);
    for (cq, qp) in queues {
        driver.destroy_qp(qp, &[&cq]).map_err(cannot("destroy a queue pair"))?;
        driver.destroy_cq(cq).map_err(cannot("destroy a completion queue"))?;
    }
    node.close(pair)?;
    outcome
}

/// Completion queues, and to each a queue pair that is connected to itself.
fn make_queues<M: Machine>(node: &Node<'_, M>) -> Result<[(Cq, Qp); QUEUES], String> {
    let sizes = QpSizes { send_wr: 16, recv_wr: 16, send_sge: 2, recv_sge: 2 };
    let make = |()| {
        let cq = node.driver.create_cq(node.context, 64).map_err(cannot("create a completion queue"))?;
        let qp = node.create_for(&cq, sizes)?;
        node.connect(&qp, node.driver.platform().mac(), qp.qpn)?;
        Ok::<_, String>((cq, qp))
    };
    let [a, b, c] = [(); QUEUES].map(make);
    Ok([a?, b?, c?])
}

fn run<M: Machine>(node: &Node<'_, M>, polling: &Qp, queues: &[(Cq, Qp); QUEUES], rounds: u32) -> Outcome {
    let driver = node.driver;
    let mut random = 1u32;
    // Per queue: whether it has been announced since it was last emptied.
    let mut announced = [false; QUEUES];
    for round in 0..rounds {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let bits = random >> 16;
        let chosen = (bits >> 8) as usize % QUEUES;
        let (cq, qp) = &queues[chosen];
        announced[chosen] = false;
        if round % ROUNDS_PER_PAUSE == 0 {
            for _ in 0..REQUESTS_PER_PAUSE {
                post_and_poll(node, polling, &node.cq)?;
            }
        }
        if bits & 1 != 0 && !driver.post_send(qp, &write(node, u64::from(round))) {
            return Err("The send queue is full".into());
        }
        // The other queues are armed as well, and nothing will come to them.
        for (other, _) in queues.iter().filter(|_| bits & 2 != 0) {
            driver.arm(other, false);
        }
        driver.arm(cq, false);
        let mut done = driver.poll(cq);
        if bits & 1 == 0 && !driver.post_send(qp, &write(node, u64::from(round))) {
            return Err("The send queue is full".into());
        }
        // As a program that sleeps: it looks only when it was told.
        while done.is_none() {
            if bits & 4 != 0 {
                post_and_poll(node, polling, &node.cq)?;
            }
            wait(node, "notification", || {
                // The program that polls hides what was armed.
                driver.poll(&node.cq);
                while let Some(handle) = driver.next_notification() {
                    if let Some(place) = queues.iter().position(|(cq, _)| cq.handle == handle) {
                        announced[place] = true;
                    }
                }
                announced[chosen].then_some(())
            })
            .map_err(|reason| format!("Round {round}: {reason}"))?;
            done = driver.poll(cq);
            announced[chosen] = false;
            if done.is_none() {
                // Told for nothing: it goes to sleep again.
                driver.arm(cq, false);
                done = driver.poll(cq);
            }
        }
        if let Some(bad) = done.filter(|done| done.status != 0) {
            return Err(format!("Round {round} ended with status {}", bad.status));
        }
    }
    Ok(())
}
