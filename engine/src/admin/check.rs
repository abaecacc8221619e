//! The checker: reads everything from the device, page by page, and compares what refers to what.
//!
//! It holds the maintenance lock, so that no fold changes the base meanwhile; commits go on. Every page of the data
//! file must be exactly one of: meta, part of the base, of a checkpoint and not of the base, the saved bitmap, the register
//! of checkpoints, retired, loose (referred to by the log or by a transaction), free.

use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::api::snapshot::Pinned;
use crate::api::store::Store;
use crate::btree::{self, Root, Visit};
use crate::core::Core;
use crate::core::catalog::map_id;
use crate::core::pins::Purpose;
use crate::datafile::meta::{META_PAGES, Meta, MetaPages};
use crate::error::{Error, Result};
use crate::key::full_key::{CATALOG, FIRST_USER_MAP, FullRange};
use crate::log::decode_root;
use crate::log::{OperationKind, Operations, RECORD_HEADER_BYTES, SegmentHeader, scan};
use crate::progress::{Progress, with_progress};
use crate::read::write_set::OwnWrites;
use crate::region::{GenerationState, Version};

/// What a check found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// What is wrong, one line each; empty for a sound store.
    pub problems: Vec<String>,
    /// Pages of the data file that were read and verified.
    pub pages: u64,
    /// Pairs in all maps, in the base and in the log; 0 when they cannot be counted.
    pub pairs: u64,
    /// Records of the log that were read and verified.
    pub records: u64,
}

/// What a page was found to be, one byte a page.
struct Uses {
    of_page: Vec<&'static str>,
}

const NOT_SEEN: &str = "";
const A_VALUE: &str = "a value";

impl Uses {
    /// Notes pages of a checkpoint, which it may share with the base and with other checkpoints. Returns whether they are new.
    fn keep(&mut self, pages: &Range<u32>, problems: &mut Vec<String>) -> bool {
        let Some(places) = self.of_page.get_mut(pages.start as usize..pages.end as usize) else {
            problems.push(format!("page {} (a checkpoint) lies beyond the data file", pages.start));
            return false;
        };
        let is_new = places.iter().all(|before| *before == NOT_SEEN);
        places
            .iter_mut()
            .filter(|before| **before == NOT_SEEN)
            .for_each(|place| *place = "a checkpoint");
        is_new
    }

    fn mark(&mut self, page: u32, pages: u32, what: &'static str, problems: &mut Vec<String>) {
        for page in page..page + pages {
            match self.of_page.get_mut(page as usize) {
                None => problems.push(format!("page {page} ({what}) lies beyond the data file")),
                Some(before) if *before != NOT_SEEN => {
                    problems.push(format!("page {page} is used twice: as {before} and as {what}"))
                }
                Some(place) => *place = what,
            }
        }
    }
}

impl Store {
    /// Reads and verifies everything in the store, while it is in use: checksums, order of keys, counts, the log, and
    /// that every page is accounted for. What is wrong is in the report. `progress` is called in this thread and may
    /// use the store; a commit that must wait for a fold waits until the base has been read.
    ///
    /// # Errors
    /// Only what keeps the check from running: [`crate::Reason::Closed`], [`crate::Reason::Poisoned`].
    pub fn check(&self, progress: &mut dyn FnMut(Progress)) -> Result<CheckReport> {
        with_progress(progress, |progress| self.check_all(progress))
    }

    fn check_all(&self, progress: &mut dyn FnMut(Progress)) -> Result<CheckReport> {
        let core = self.core();
        core.healthy()?;
        let state = core.hold_maintenance()?;
        let pinned = Pinned::new(self, &core.control().visible.0, Purpose::Snapshot)?;
        let mut report = CheckReport::default();
        core.check_meta(&state.durable, &mut report);
        core.check_region(&mut report);
        let version = core.region.version();
        let mut uses = core.check_base(&version, progress, &mut report)?;
        core.check_checkpoints(&version, &mut uses, &mut report)?;
        core.check_log(&version, &mut report);
        core.check_space(uses, &state.durable, &mut report)?;
        drop(state);
        check_names(&pinned, &mut report);
        Ok(report)
    }
}

impl Core {
    fn check_region(&self, report: &mut CheckReport) {
        if self.region.is_cut_off().unwrap_or(true) {
            let problem = "the file `shared` was cut off, in which processes keep what they share; close the store in all of \
                           them: nothing is lost by that";
            report.problems.push(problem.to_string());
        }
    }

    fn check_meta(&self, durable: &Meta, report: &mut CheckReport) {
        match MetaPages::read(&*self.data) {
            Ok(Some(found)) if found.newest == *durable => {
                report.problems.extend(found.broken().map(|page| {
                    format!(
                        "page {page} of the data file, one of the four meta pages, is not intact; while another copy of \
                         it is, opening the store for writing writes it again"
                    )
                }));
            }
            Ok(Some(found)) => report.problems.push(format!(
                "the newest intact meta page is number {}, number {} was written",
                found.newest.sequence, durable.sequence
            )),
            Ok(None) => report.problems.push("no meta page is intact".into()),
            Err(error) => report.problems.push(error.to_string()),
        }
    }

    /// Walks the base; returns which pages it uses.
    fn check_base(
        &self,
        version: &Version,
        progress: &mut dyn FnMut(Progress),
        report: &mut CheckReport,
    ) -> Result<Uses> {
        let total = self.space.figures()?.file_pages;
        let mut uses = Uses {
            of_page: vec![NOT_SEEN; total as usize],
        };
        let (mut problems, mut found) = (Vec::new(), Vec::new());
        let mut done = 0;
        let source = self.pages.verified();
        btree::check_tree(source, version.root, self.hash_seed, &mut problems, &mut |visit| {
            // Others wait for the maintenance meanwhile.
            self.beat();
            match visit {
                Visit::Page {
                    number, pages, birth, ..
                } => {
                    done += pages as u64;
                    uses.mark(number, pages, "the base", &mut found);
                    if birth > version.number {
                        found.push(format!(
                            "page {number} is younger ({birth}) than the base ({})",
                            version.number
                        ));
                    }
                }
                Visit::Extent(extent) => {
                    done += extent.pages() as u64;
                    uses.mark(extent.page, extent.pages(), A_VALUE, &mut found);
                    if let Err(error) = source.extent(extent) {
                        found.push(error.to_string());
                    }
                }
            }
            progress(Progress { done, total });
            Ok(())
        })?;
        report.problems.append(&mut problems);
        report.problems.append(&mut found);
        report.pages = done;
        Ok(uses)
    }

    /// Walks the trees of checkpoints, each without what its parent has.
    fn check_checkpoints(&self, version: &Version, uses: &mut Uses, report: &mut CheckReport) -> Result<()> {
        let saved = version.register;
        uses.mark(
            saved.page,
            saved.pages,
            "the register of checkpoints",
            &mut report.problems,
        );
        let register = match self.register(saved) {
            Ok(register) => register,
            Err(error) => {
                report.problems.push(error.to_string());
                return Ok(());
            }
        };
        let source = self.pages.verified();
        for kept in &register.all {
            let than = register.version_of(kept.parent);
            let walked = btree::walk_newer(source, kept.root, than, &mut |visit| {
                self.beat();
                let pages = visit.pages();
                let is_new = uses.keep(&pages, &mut report.problems);
                if let Visit::Extent(extent) = visit
                    && is_new
                {
                    source.extent(extent)?;
                }
                report.pages += if is_new { pages.len() as u64 } else { 0 };
                Ok(())
            });
            if let Err(error) = walked {
                report.problems.push(format!("checkpoint {:?}: {error}", kept.name));
            }
        }
        Ok(())
    }

    /// Scans the log files of the live generations, and the values and runs that they refer to.
    fn check_log(&self, version: &Version, report: &mut CheckReport) {
        for &slot in &version.generations {
            if let Err(error) = self.check_generation(slot, report) {
                report.problems.push(error.to_string());
            }
        }
    }

    fn check_generation(&self, slot: u16, report: &mut CheckReport) -> Result<()> {
        let entry = self.entry(slot);
        let tail = entry.tail.load(Ordering::Acquire);
        let mut bytes = vec![0; tail as usize];
        let file = self.log_file(slot)?;
        let name = crate::log::file_name(slot);
        file.read_at(&mut bytes, 0)
            .map_err(|error| Error::io(format!("reading {name}"), error))?;
        let Some(header) = SegmentHeader::decode(&bytes, self.store) else {
            return Err(Error::damaged(format!("the header of {name} is not intact")));
        };
        let frozen = entry.state() == GenerationState::Frozen;
        let mut records = 0;
        let mut problems = Vec::new();
        let scanned = scan(&bytes, &header, &self.seeds, |_, _, body| {
            records += 1;
            for operation in Operations::of(body) {
                let (_, operation) = operation?;
                let referred = match operation.kind {
                    OperationKind::PutExtent => match operation.stored() {
                        btree::Stored::Extent(extent) => self.pages.verified().extent(extent).map(drop),
                        _ => Ok(()),
                    },
                    OperationKind::Run => self.check_run(decode_root(operation.value)),
                    _ => Ok(()),
                };
                problems.extend(referred.err().map(|error| error.to_string()));
            }
            Ok(())
        })?;
        report.records += records;
        report.problems.append(&mut problems);
        if scanned.tail + (RECORD_HEADER_BYTES as u64) < tail || frozen && scanned.tail != tail {
            return Err(Error::damaged(format!(
                "the records of {name} end at {}, not at {tail}",
                scanned.tail
            )));
        }
        Ok(())
    }

    fn check_run(&self, root: Root) -> Result<()> {
        let source = self.pages.verified();
        btree::walk(source, root, &mut |visit| match visit {
            // The walk has verified it.
            Visit::Page { .. } => Ok(()),
            Visit::Extent(extent) => source.extent(extent).map(drop),
        })
    }

    /// Compares what was found with what the allocator believes.
    fn check_space(&self, mut uses: Uses, durable: &Meta, report: &mut CheckReport) -> Result<()> {
        let (bitmap, loose, retired) = self.space.contents()?;
        let problems = &mut report.problems;
        uses.of_page.resize(bitmap.pages() as usize, NOT_SEEN);
        uses.mark(0, META_PAGES, "meta pages", problems);
        uses.mark(durable.bitmap.page, durable.bitmap.pages, "the saved bitmap", problems);
        for item in &retired {
            uses.mark(item.page, item.pages, "retired", problems);
        }
        // A base that holds a part of a generation refers to values that its records refer to.
        let is_in_both = |page: u32| self.is_begun() && uses.of_page[page as usize] == A_VALUE;
        let in_log = (0..bitmap.pages()).filter(|&page| loose.is_used(page) && !is_in_both(page));
        for page in in_log.collect::<Vec<_>>() {
            uses.mark(page, 1, "a value or run in the log", problems);
        }
        let free = (0..bitmap.pages()).filter(|&page| !bitmap.is_used(page));
        for page in free.filter(|&page| uses.of_page[page as usize] != NOT_SEEN) {
            problems.push(format!(
                "page {page} is {}, but counts as free",
                uses.of_page[page as usize]
            ));
        }
        let used = (0..bitmap.pages()).filter(|&page| bitmap.is_used(page));
        let lost: Vec<u32> = used.filter(|&page| uses.of_page[page as usize] == NOT_SEEN).collect();
        if !lost.is_empty() {
            problems.push(format!(
                "{} pages count as used, but nothing refers to them: {}",
                lost.len(),
                listed(&lost)
            ));
        }
        Ok(())
    }
}

/// Ascending page numbers for people: `7, 12 to 15`; not all when they are in very many places.
fn listed(pages: &[u32]) -> String {
    const PLACES_MAX: usize = 20;
    let runs: Vec<&[u32]> = pages.chunk_by(|one, next| one + 1 == *next).collect();
    let shown = runs.iter().take(PLACES_MAX).map(|run| match run {
        [page] => page.to_string(),
        _ => format!("{} to {}", run[0], run[run.len() - 1]),
    });
    let mut text = shown.collect::<Vec<_>>().join(", ");
    if runs.len() > PLACES_MAX {
        text.push_str(", and others");
    }
    text
}

/// Every pair must belong to a map that has a name.
fn check_names(pinned: &Pinned, report: &mut CheckReport) {
    let named = || -> Result<u64> {
        let mut named = 0;
        let mut scan = pinned.scan(OwnWrites::default(), FullRange::map(CATALOG));
        while let Some((_, id)) = scan.next_pair()? {
            named += pinned.count(&FullRange::map(map_id(&id)?))?;
        }
        Ok(named)
    };
    let all = pinned.count(&FullRange::from_map(FIRST_USER_MAP));
    match (named(), all) {
        (Ok(named), Ok(all)) => {
            report.pairs = all;
            if named != all {
                report.problems.push(format!(
                    "{all} pairs are stored, but the maps that have names hold {named}"
                ));
            }
        }
        // What keeps the counts from being made was met on the way through the base.
        (Err(error), _) | (_, Err(error)) if report.problems.is_empty() => report.problems.push(error.to_string()),
        (Err(_), _) | (_, Err(_)) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use duramen_io::SimDisk;

    use crate::{Durability, Maintenance, Options};

    #[test]
    fn whoever_waits_for_a_check_sees_that_it_gets_on() {
        let options = Options::new()
            .maintenance(Maintenance::Manual)
            .durability(Durability::Written);
        let store = options.open_on(SimDisk::new(1).platform()).expect("a store");
        let map = store.map("map").expect("a map");
        (0..1_000u32).for_each(|number| map.put(number.to_be_bytes(), [7; 100]).expect("a put"));
        store.maintain().expect("a fold");
        let beat = || store.core().control().maintenance_beat.load(Ordering::Relaxed);
        let before = beat();
        let report = store.check(&mut |_| ()).expect("a check");
        assert_eq!(report.problems, [""; 0]);
        assert!(beat() >= before + 1_000 * 100 / 4096, "a sign of life for each page");
    }
}
