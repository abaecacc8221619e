//! The record of acknowledged commits and checkpoints. The supervisor holds it, and the supervisor is never killed.

/// The slot of a writer. A writer that takes over the slot of a dead one continues its numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Newest transaction whose commit returned.
    acknowledged: u64,
    /// Newest transaction whose commit began.
    begun: u64,
    /// Number of commits that returned.
    pub commits: u64,
    /// The transaction before the newest checkpoint whose making returned; 0: there is none.
    kept: u64,
    /// Those before the checkpoints that were begun since.
    keeps: Vec<u64>,
    /// Number of checkpoints whose making returned.
    pub checkpoints: u64,
}

impl Place {
    /// Records that the commit of `number` begins.
    pub fn begins(&mut self, number: u64) -> Result<(), String> {
        if number != self.acknowledged + 1 {
            return Err(format!("began {number} after {} was acknowledged", self.acknowledged));
        }
        self.begun = number;
        Ok(())
    }

    /// Records that the commit of `number` returned.
    pub fn is_acknowledged(&mut self, number: u64) -> Result<(), String> {
        if number != self.begun {
            return Err(format!("{number} was acknowledged, begun was {}", self.begun));
        }
        self.acknowledged = number;
        self.commits += 1;
        Ok(())
    }

    /// Whether a commit has begun and has not returned; making a checkpoint is one.
    pub fn is_in_flight(&self) -> bool {
        self.begun > self.acknowledged || self.keeps.last() == Some(&self.acknowledged)
    }

    /// Records that a process found `newest` to be the newest transaction in the store. It must be the newest
    /// acknowledged transaction, or the one in flight when the writer died.
    pub fn is_found(&mut self, newest: u64) -> Result<(), String> {
        if newest < self.acknowledged {
            return Err(format!(
                "LOST: transaction {} was acknowledged, the newest that is there is {newest}",
                self.acknowledged
            ));
        }
        if newest > self.begun.max(self.acknowledged) {
            return Err(format!("transaction {newest} is there, but it was never begun"));
        }
        (self.acknowledged, self.begun) = (newest, newest);
        Ok(())
    }

    /// Records that the making of the checkpoint after `number` begins.
    pub fn keeps(&mut self, number: u64) -> Result<(), String> {
        if number != self.acknowledged {
            return Err(format!("a checkpoint after {number} began after {}", self.acknowledged));
        }
        self.keeps.push(number);
        Ok(())
    }

    /// Records that the making of the checkpoint after `number` returned.
    pub fn is_kept(&mut self, number: u64) -> Result<(), String> {
        if self.keeps.last() != Some(&number) {
            return Err(format!(
                "a checkpoint after {number} was made, begun were {:?}",
                self.keeps
            ));
        }
        self.keeps.clear();
        self.kept = number;
        self.checkpoints += 1;
        Ok(())
    }

    /// Records that a process found the checkpoint after `newest` to be the newest in the store. It was acknowledged, or begun
    /// since the last acknowledged one.
    pub fn is_kept_found(&mut self, newest: u64) -> Result<(), String> {
        if newest < self.kept {
            return Err(format!(
                "LOST: the checkpoint after {} was acknowledged, the newest that is there is after {newest}",
                self.kept
            ));
        }
        if newest != self.kept && !self.keeps.contains(&newest) {
            return Err(format!("a checkpoint after {newest} is there, but it was never begun"));
        }
        self.kept = newest;
        self.keeps.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        let mut place = Place::default();
        for number in 1..=3 {
            place.begins(number).unwrap();
            place.is_acknowledged(number).unwrap();
        }
        place
    }

    #[test]
    fn what_was_acknowledged_must_be_found_and_what_was_begun_may_be() {
        assert!(place().is_found(2).unwrap_err().contains("LOST"));
        assert!(place().is_found(3).is_ok());
        assert!(place().is_found(4).is_err(), "it was never begun");
        let mut place = place();
        place.begins(4).unwrap();
        assert!(place.is_in_flight());
        for newest in [3, 4] {
            let mut place = place.clone();
            place.is_found(newest).unwrap();
            assert!(!place.is_in_flight());
            place.begins(newest + 1).unwrap();
        }
        assert!(place.is_found(5).is_err());
    }

    #[test]
    fn checkpoint_that_was_acknowledged_must_be_found_and_one_that_was_begun_may_be() {
        let mut place = place();
        assert!(place.is_kept_found(0).is_ok());
        assert!(place.keeps(2).is_err(), "three transactions are acknowledged");
        place.keeps(3).unwrap();
        assert!(place.is_kept(2).is_err());
        place.is_kept(3).unwrap();
        assert!(place.clone().is_kept_found(0).unwrap_err().contains("LOST"));
        for number in [4, 5] {
            place.begins(number).unwrap();
            place.is_acknowledged(number).unwrap();
            place.keeps(number).unwrap();
        }
        for newest in [3, 4, 5] {
            assert!(place.clone().is_kept_found(newest).is_ok());
        }
        assert!(place.is_kept_found(6).is_err(), "it was never begun");
    }

    #[test]
    fn writer_that_skips_or_repeats_a_number_is_noticed() {
        let mut place = place();
        assert!(place.begins(5).is_err());
        assert!(place.begins(3).is_err());
        assert!(place.is_acknowledged(4).is_err());
    }
}
