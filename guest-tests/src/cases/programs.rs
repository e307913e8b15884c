//! Stock verbs programs between two guests.

use anyhow::{Result, ensure};

use crate::rdma::{Listening, Program, Style};
use crate::suite::{Case, Stand};

/// The programs, each under a name of its own.
const PROGRAMS: &[(&str, Style, &str)] = &[
    ("rc-pingpong", Style::PingPong, "ibv_rc_pingpong -n 100 -c"),
    ("rc-pingpong-events", Style::PingPong, "ibv_rc_pingpong -n 100 -c -e"),
    ("rc-pingpong-mtu-256", Style::PingPong, "ibv_rc_pingpong -n 50 -c -m 256"),
    ("rc-pingpong-1-byte", Style::PingPong, "ibv_rc_pingpong -n 50 -c -s 1"),
    ("rc-pingpong-1-MiB", Style::PingPong, "ibv_rc_pingpong -n 10 -c -s 1048576"),
    ("rc-pingpong-8-MiB-mtu-4096", Style::PingPong, "ibv_rc_pingpong -n 3 -c -m 4096 -s 8388608"),
    ("ud-pingpong", Style::PingPong, "ibv_ud_pingpong -n 100 -s 1024"),
    ("srq-pingpong", Style::PingPong, "ibv_srq_pingpong -n 100 -q 4"),
    ("srq-pingpong-16-queue-pairs", Style::PingPong, "ibv_srq_pingpong -n 100 -q 16"),
    ("send-bw", Style::Perftest, "ib_send_bw -n 100"),
    ("send-bw-events", Style::Perftest, "ib_send_bw -n 100 -e"),
    ("send-bw-ud", Style::Perftest, "ib_send_bw -n 100 -c UD -s 1024"),
    ("send-bw-srq", Style::Perftest, "ib_send_bw -n 100 --use-srq"),
    ("send-bw-cm", Style::PerftestCm, "ib_send_bw -n 100"),
    ("send-lat", Style::Perftest, "ib_send_lat -n 100"),
    ("write-bw", Style::Perftest, "ib_write_bw -n 100"),
    ("write-bw-4-queue-pairs", Style::Perftest, "ib_write_bw -n 100 -q 4 -s 4096"),
    ("write-bw-both-ways", Style::Perftest, "ib_write_bw -n 100 -b"),
    ("write-lat", Style::Perftest, "ib_write_lat -n 100"),
    ("read-bw", Style::Perftest, "ib_read_bw -n 100"),
    ("read-lat", Style::Perftest, "ib_read_lat -n 100"),
    ("atomic-bw-add", Style::Perftest, "ib_atomic_bw -n 100 -A FETCH_AND_ADD"),
    ("atomic-bw-swap", Style::Perftest, "ib_atomic_bw -n 100 -A CMP_AND_SWAP"),
    ("atomic-lat", Style::Perftest, "ib_atomic_lat -n 100"),
    ("rping", Style::Rping, "rping -C 20 -V -v"),
    ("rping-64-KiB", Style::Rping, "rping -C 10 -S 65536 -V"),
    ("ucmatose", Style::Cm, "ucmatose -C 16 -S 4096"),
    ("udaddy", Style::Cm, "udaddy -C 16 -S 1024"),
];

/// Connection management by itself and sockets over RDMA.
const SOCKETS: &[(&str, Style, &str)] = &[
    ("rping-own-queue-pair", Style::Rping, "rping -C 10 -V -q"),
    ("rdma-client", Style::CmServer("rdma_server"), "rdma_client"),
    ("rstream-verified", Style::Cm, "rstream -I 10 -C 20 -S 3000 -T v"),
    ("rstream-nonblocking", Style::Cm, "rstream -I 10 -C 20 -S 65536 -T n"),
    ("riostream-verified", Style::Cm, "riostream -I 10 -C 4 -S 16384 -T v"),
];

/// Bytes of the file that rcopy copies.
const FILE: u32 = 3_000_001;

pub fn cases() -> Vec<Case> {
    let more = [
        Case::new("programs/rcopy-copies-a-file", rcopy),
        Case::new("programs/cmtime", cmtime),
        Case::new("programs/perftest-writes-its-report-to-a-file", report),
        Case::new("programs/rping-serves-four-clients-side-by-side", rping_clients),
    ];
    PROGRAMS.iter().chain(SOCKETS).map(case).chain(more).collect()
}

fn case(&(name, style, line): &(&str, Style, &'static str)) -> Case {
    let program = Program::new(style, line);
    Case::new(format!("programs/{name}"), move |stand| {
        let (a, b) = (stand.a(), stand.b());
        program.pair(&stand.end(a, 0)?, &stand.end(b, 0)?).must(a, b)?;
        Ok(())
    })
}

fn rcopy(stand: &mut Stand<'_>) -> Result<()> {
    let (a, b) = (stand.a(), stand.b());
    let sent = b.must(format!("head -c {FILE} /dev/urandom > /tmp/sent && sha256sum < /tmp/sent"))?;
    let server = a.start("rcopy");
    a.must(Listening::Cm.wait())?;
    let copied = b.run(format!("rcopy /tmp/sent {}:/tmp/received", a.ip(0)))?.success();
    server.kill()?;
    copied?;
    let received = a.must("sha256sum < /tmp/received; rm /tmp/received")?;
    b.must("rm /tmp/sent")?;
    ensure!(received == sent, "{FILE} bytes with hash {sent} arrived with hash {received}");
    Ok(())
}

/// It serves one client after the other, for ever.
fn cmtime(stand: &mut Stand<'_>) -> Result<()> {
    let (a, b) = (stand.a(), stand.b());
    let server = a.start("cmtime");
    a.must(Listening::Cm.wait())?;
    let output = b.must(format!("cmtime -c 32 -s {}", a.ip(0)));
    server.kill()?;
    let output = output?;
    ensure!(output.contains("disconnect"), "It printed\n{output}");
    Ok(())
}

/// It calls the report JSON, which this version's is not quite.
fn report(stand: &mut Stand<'_>) -> Result<()> {
    let (a, b) = (stand.a(), stand.b());
    let line = "ib_write_bw -n 50 --out_json --out_json_file=/tmp/report";
    Program::new(Style::Perftest, line).pair(&stand.end(a, 0)?, &stand.end(b, 0)?).must(a, b)?;
    let text = b.must("cat /tmp/report; rm /tmp/report")?;
    a.must("rm -f /tmp/report")?;
    ensure!(text.contains("n_iterations: 50,"), "It reports\n{text}");
    Ok(())
}

/// Clients connect one after the other and then run side by side: of requests that come at the same moment, this rping
/// (of rdma-core 44) forgets all but the last.
fn rping_clients(stand: &mut Stand<'_>) -> Result<()> {
    let (a, b) = (stand.a(), stand.b());
    let server = a.start("rping -s -P");
    a.must(Listening::Cm.wait())?;
    let client = format!("rping -c -a {} -V", a.ip(0));
    let mut endless = Vec::new();
    for connected in 1..=3 {
        endless.push(b.start(&client[..]));
        let count = "$(rdma resource show qp | grep -c 'type RC.*state RTS')";
        b.must(format!("until test {count} -eq {connected}; do sleep 0.2; done"))?;
    }
    b.must(format!("{client} -C 20"))?;
    for mut job in endless {
        ensure!(job.poll()?.is_none(), "A client has ended early");
        job.kill()?;
    }
    server.kill()?;
    Ok(())
}
