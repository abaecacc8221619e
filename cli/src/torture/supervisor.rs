//! The supervisor: starts the members, harms them as the seed determines, and judges their messages.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use duramen::Durability;
use rustix::process::{Pid, Signal, kill_process};

use super::checkpoints;
use super::content::Maps;
use super::invariants::{Seen, check_records, look, newest_of};
use super::ledger::Place;
use super::messages::{Message, Role};
use super::open;
use crate::exit::{Failure, Outcome};
use crate::progress::Meter;

/// Mean time between two actions of the supervisor.
const PAUSE_MEAN: Duration = Duration::from_millis(60);
/// Maximum time a member stays suspended. Most suspensions are short. Some last so long that other members get an error
/// that names the suspended process.
const STOP_SHORT: Duration = Duration::from_millis(50);
const STOP_LONG: Duration = Duration::from_secs(7);
/// A member that sends nothing for this long counts as hung.
const SILENCE_MAX: Duration = Duration::from_secs(90);
/// If the time between two checks exceeds this, the supervisor itself did not run. The members may not have run either.
const SUSPENDED_AFTER: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_millis(20);

/// What to do: the store, the time, the seed, and the number of members.
pub struct Plan {
    pub directory: PathBuf,
    pub time: Duration,
    pub seed: u64,
    pub writers: u32,
    pub readers: u32,
}

/// What happened.
#[derive(Default)]
pub struct Sum {
    pub elapsed: Duration,
    pub commits: u64,
    /// Checkpoints that writers made.
    pub checkpoints: u64,
    pub looks: u64,
    /// Members killed; writers among them; and writers among those with a commit in flight.
    pub kills: u64,
    pub writer_kills: u64,
    pub kills_in_flight: u64,
    /// Times the supervisor killed all members at once.
    pub massacres: u64,
    pub stops: u64,
    /// Members that ended when asked to.
    pub endings: u64,
    /// Times a call reported that a suspended process blocked it.
    pub busy: u64,
    /// Problems found; empty if there are none.
    pub problems: Vec<String>,
}

/// How the supervisor expects a member to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    GoesOn,
    Killed,
    AskedToEnd,
}

struct Member {
    role: Role,
    slot: u32,
    child: Child,
    stdin: Option<ChildStdin>,
    /// Number of the process in this seat. A message from an earlier process in the seat carries another number.
    life: u64,
    fate: Fate,
    stopped_until: Option<Instant>,
    heard: Instant,
    has_ended: bool,
}

impl Member {
    fn signal(&self, signal: Signal) -> Result<(), String> {
        let process = Pid::from_child(&self.child);
        kill_process(process, signal).map_err(|error| format!("sending {signal:?}: {error}"))
    }
}

/// A line from a member, or `None` at the end of its pipe.
type Told = (usize, u64, Option<String>);

struct Supervisor<'p> {
    plan: &'p Plan,
    random: fastrand::Rng,
    members: Vec<Member>,
    places: Vec<Place>,
    told: Receiver<Told>,
    tell: Sender<Told>,
    lives: u64,
    /// Time of the last check for hung members.
    looked: Instant,
    sum: Sum,
}

/// Tortures a store, and checks what is left.
pub fn torture(plan: &Plan) -> Outcome<Sum> {
    let (tell, told) = channel();
    let mut supervisor = Supervisor {
        plan,
        random: fastrand::Rng::with_seed(plan.seed),
        members: Vec::new(),
        places: vec![Place::default(); plan.writers as usize],
        told,
        tell,
        lives: 0,
        looked: Instant::now(),
        sum: Sum::default(),
    };
    let began = Instant::now();
    let outcome = supervisor.run(began);
    supervisor.kill_all();
    let mut sum = supervisor.sum;
    sum.elapsed = began.elapsed();
    sum.commits = supervisor.places.iter().map(|place| place.commits).sum();
    sum.checkpoints = supervisor.places.iter().map(|place| place.checkpoints).sum();
    outcome?;
    Ok(sum)
}

impl Supervisor<'_> {
    fn run(&mut self, began: Instant) -> Outcome<()> {
        let roles = (0..self.plan.writers)
            .map(|slot| (Role::Writer, slot))
            .chain((0..self.plan.readers).map(|slot| (Role::Reader, slot)));
        for (seat, (role, slot)) in roles.enumerate() {
            let member = self.start(seat, role, slot)?;
            self.members.push(member);
        }
        let mut meter = Meter::new("torturing", "kills");
        let mut next = began + PAUSE_MEAN;
        while began.elapsed() < self.plan.time && self.sum.problems.is_empty() {
            self.listen(TICK)?;
            self.let_go_on();
            self.find_silent();
            if Instant::now() >= next {
                if let Err(problem) = self.do_harm() {
                    self.sum.problems.push(problem);
                }
                next = Instant::now() + PAUSE_MEAN.mul_f64(2.0 * self.random.f64());
            }
            meter.update(self.sum.kills, 0);
        }
        drop(meter);
        if self.sum.problems.is_empty() {
            self.end_all()?;
        }
        if self.sum.problems.is_empty()
            && let Err(problem) = self.look_at_what_is_left()
        {
            self.sum.problems.push(problem);
        }
        Ok(())
    }

    fn start(&mut self, seat: usize, role: Role, slot: u32) -> Outcome<Member> {
        let doing = |error| Failure::of_io("starting a member of the torture", &error);
        self.lives += 1;
        let life = self.lives;
        let role_name = match role {
            Role::Writer => "writer",
            Role::Reader => "reader",
        };
        let mut child = Command::new(std::env::current_exe().map_err(doing)?)
            .arg("torture-member")
            .arg(&self.plan.directory)
            .args(["--role", role_name])
            .args(["--slot", &slot.to_string()])
            .args(["--slots", &self.plan.writers.to_string()])
            .args(["--seed", &self.random.u64(..).to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(doing)?;
        let stdout = child.stdout.take().expect("it is piped");
        let tell = self.tell.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if tell.send((seat, life, Some(line))).is_err() {
                    return;
                }
            }
            let _ = tell.send((seat, life, None));
        });
        Ok(Member {
            role,
            slot,
            stdin: child.stdin.take(),
            child,
            life,
            fate: Fate::GoesOn,
            stopped_until: None,
            heard: Instant::now(),
            has_ended: false,
        })
    }

    /// Processes messages from members for about `time`.
    fn listen(&mut self, time: Duration) -> Outcome<()> {
        let until = Instant::now() + time;
        loop {
            match self.told.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((seat, life, line)) if self.members[seat].life == life => match line {
                    Some(line) => self.take(seat, &line),
                    None => self.has_died(seat)?,
                },
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(()),
            }
            if Instant::now() >= until {
                return Ok(());
            }
        }
    }

    fn take(&mut self, seat: usize, line: &str) {
        let member = &mut self.members[seat];
        member.heard = Instant::now();
        let place = self
            .places
            .get_mut(member.slot as usize)
            .filter(|_| member.role == Role::Writer);
        let told = match (Message::parse(line), place) {
            (Some(Message::Found(newest)), Some(place)) => place.is_found(newest),
            (Some(Message::Begins(number)), Some(place)) => place.begins(number),
            (Some(Message::Acknowledged(number)), Some(place)) => place.is_acknowledged(number),
            (Some(Message::FoundKept(newest)), Some(place)) => place.is_kept_found(newest),
            (Some(Message::Keeps(number)), Some(place)) => place.keeps(number),
            (Some(Message::Kept(number)), Some(place)) => place.is_kept(number),
            (Some(Message::Looked(_)), None) => {
                self.sum.looks += 1;
                Ok(())
            }
            (Some(Message::Busy), Some(_)) => {
                self.sum.busy += 1;
                Ok(())
            }
            (Some(Message::Ended), _) => {
                member.has_ended = true;
                Ok(())
            }
            (Some(Message::Failed(problem)), _) => Err(problem),
            _ => Err(format!("it said {line:?}")),
        };
        if let Err(problem) = told {
            let (role, slot) = (member.role, member.slot);
            self.sum.problems.push(format!("{role:?} {slot}: {problem}"));
        }
    }

    /// Handles the end of a member, after all its messages are processed. Starts another member in its seat.
    fn has_died(&mut self, seat: usize) -> Outcome<()> {
        let member = &mut self.members[seat];
        let status = member.child.wait();
        match member.fate {
            Fate::Killed => {
                self.sum.kills += 1;
                if member.role == Role::Writer {
                    self.sum.writer_kills += 1;
                    let is_in_flight = self.places[member.slot as usize].is_in_flight();
                    self.sum.kills_in_flight += u64::from(is_in_flight);
                }
            }
            Fate::AskedToEnd if member.has_ended => self.sum.endings += 1,
            fate => {
                let (role, slot) = (member.role, member.slot);
                let problem = format!("{role:?} {slot} ({fate:?}) ended by itself: {status:?}");
                self.sum.problems.push(problem);
                return Ok(());
            }
        }
        let (role, slot) = (member.role, member.slot);
        self.members[seat] = self.start(seat, role, slot)?;
        Ok(())
    }

    /// Resumes members that have been suspended for long enough.
    fn let_go_on(&mut self) {
        for member in &mut self.members {
            if member.stopped_until.is_some_and(|until| Instant::now() >= until) {
                member.stopped_until = None;
                member.heard = Instant::now();
                // The member may have been killed meanwhile.
                let _ = member.signal(Signal::CONT);
            }
        }
    }

    fn find_silent(&mut self) {
        // A user who suspends the supervisor, for example with Ctrl-Z, also suspends the members on the same terminal.
        let gap = self.looked.elapsed();
        self.looked = Instant::now();
        if gap > SUSPENDED_AFTER {
            self.members.iter_mut().for_each(|member| member.heard += gap);
        }
        for member in &self.members {
            if member.stopped_until.is_none() && member.heard.elapsed() > SILENCE_MAX {
                let (role, slot, process) = (member.role, member.slot, member.child.id());
                let problem =
                    format!("{role:?} {slot}, process {process}, hangs: it has said nothing for {SILENCE_MAX:?}");
                self.sum.problems.push(problem);
                return;
            }
        }
    }

    /// Harms a random member, or kills all of them.
    fn do_harm(&mut self) -> Result<(), String> {
        if self.random.u32(..40) == 0 {
            self.sum.massacres += 1;
            return (0..self.members.len()).try_for_each(|seat| self.kill(seat));
        }
        // Mostly harms writers, because writers leave unfinished work.
        let seat = match self.random.u32(..5) {
            0 => self.random.usize(..self.members.len()),
            _ => self.random.usize(..self.plan.writers as usize),
        };
        match self.random.u32(..10) {
            0..6 => self.kill(seat),
            6..9 => self.stop(seat),
            _ => {
                let member = &mut self.members[seat];
                if member.fate == Fate::GoesOn {
                    member.fate = Fate::AskedToEnd;
                    member.stdin = None;
                }
                Ok(())
            }
        }
    }

    fn kill(&mut self, seat: usize) -> Result<(), String> {
        let member = &mut self.members[seat];
        member.fate = Fate::Killed;
        member.stopped_until = None;
        member
            .child
            .kill()
            .map_err(|error| format!("killing a member: {error}"))
    }

    fn stop(&mut self, seat: usize) -> Result<(), String> {
        let time = match self.random.u32(..8) {
            0 => STOP_LONG.mul_f64(self.random.f64()),
            _ => STOP_SHORT.mul_f64(self.random.f64()),
        };
        let member = &mut self.members[seat];
        if member.fate != Fate::GoesOn || member.stopped_until.is_some() {
            return Ok(());
        }
        member.stopped_until = Some(Instant::now() + time);
        self.sum.stops += 1;
        member.signal(Signal::STOP)
    }

    /// Asks all members to end, and waits until they have.
    fn end_all(&mut self) -> Outcome<()> {
        let lives: Vec<u64> = self.members.iter().map(|member| member.life).collect();
        for member in &mut self.members {
            if member.stopped_until.take().is_some() {
                let _ = member.signal(Signal::CONT);
            }
            if member.fate == Fate::GoesOn {
                member.fate = Fate::AskedToEnd;
            }
            member.stdin = None;
            member.heard = Instant::now();
        }
        // A member that ends is replaced. The new member is asked to end at once.
        let all_first_lives_ended =
            |members: &[Member]| members.iter().zip(&lives).all(|(member, life)| member.life != *life);
        while self.sum.problems.is_empty() && !all_first_lives_ended(&self.members) {
            self.listen(TICK)?;
            self.find_silent();
        }
        Ok(())
    }

    /// Kills all remaining members.
    fn kill_all(&mut self) {
        for member in &mut self.members {
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
    }

    /// Opens the store alone and compares it with the ledger.
    fn look_at_what_is_left(&mut self) -> Result<(), String> {
        self.kill_all();
        // Messages from the last members, which had hardly started.
        while let Ok((seat, life, line)) = self.told.recv_timeout(TICK) {
            if self.members[seat].life == life
                && let Some(line) = line
            {
                self.take(seat, &line);
            }
        }
        let store = open(&self.plan.directory)?;
        let maps = Maps::open(&store).map_err(|error| error.to_string())?;
        let snapshot = store.snapshot().map_err(|error| error.to_string())?;
        look(&snapshot, &maps, self.plan.writers, &Seen::default())?;
        let mut all_newest = Vec::new();
        for (slot, place) in (0..).zip(&mut self.places) {
            let newest = newest_of(&snapshot, &maps, slot)?;
            place
                .is_found(newest)
                .map_err(|problem| format!("writer {slot}: {problem}"))?;
            all_newest.push(newest);
            let kept = checkpoints::numbers(&store, slot).map_err(|error| error.to_string())?;
            place
                .is_kept_found(kept.iter().copied().max().unwrap_or(0))
                .map_err(|problem| format!("writer {slot}: {problem}"))?;
            for number in kept {
                if !checkpoints::check(&store, &maps, self.plan.writers, slot, number)? {
                    return Err(format!("the checkpoint of writer {slot} after {number} does not open"));
                }
            }
        }
        check_records(&snapshot, &maps, &all_newest)?;
        drop(snapshot);
        let report = store.check(&mut |_| ()).map_err(|error| format!("check: {error}"))?;
        if let Some(problem) = report.problems.first() {
            return Err(format!("check: {problem}, and {} more", report.problems.len() - 1));
        }
        let after = maps.counts.with_durability(Durability::Synced);
        after
            .put(b"after the torture", 0i64.to_be_bytes())
            .map_err(|error| format!("a write afterwards: {error}"))?;
        store.close().map_err(|error| format!("closing: {error}"))
    }
}
