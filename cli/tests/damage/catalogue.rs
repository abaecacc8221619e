//! The catalogue: every kind of damage that a store can have, how to plant it, and what the report must say.

use crate::image::{Image, PAGE, TO_COPY_B, TO_OTHER_SEQUENCE};

/// What must notice a damage, with words that one line of its report must contain: the kind of damage and its place.
pub enum Noticed {
    /// The checker, in a store that opens.
    Checking(Vec<String>),
    /// The process that opens the store.
    Opening(Vec<String>),
}

/// A kind of damage to the data file.
pub struct Damage {
    pub name: &'static str,
    /// Plants the damage, and returns the expected report.
    pub plant: fn(&mut Image) -> Noticed,
}

fn checking<const N: usize>(words: [String; N]) -> Noticed {
    Noticed::Checking(words.into())
}

fn opening<const N: usize>(words: [String; N]) -> Noticed {
    Noticed::Opening(words.into())
}

fn page(number: u32) -> String {
    format!("page {number} ")
}

/// All kinds of damage.
pub const CATALOGUE: &[Damage] = &[
    // Corrupted bytes.
    Damage {
        name: "a leaf rotted",
        plant: |image| {
            let leaf = image.leaf();
            image.flip(leaf as usize * PAGE + 2000);
            checking([page(leaf), "checksum".into()])
        },
    },
    Damage {
        name: "a branch rotted",
        plant: |image| {
            let branch = image.lowest_branch();
            image.flip(branch as usize * PAGE + 9000);
            checking([page(branch), "checksum".into()])
        },
    },
    Damage {
        name: "the root rotted",
        plant: |image| {
            let root = image.root();
            image.flip(root as usize * PAGE + 70);
            checking([page(root), "checksum".into()])
        },
    },
    Damage {
        name: "a page is all zeros",
        plant: |image| {
            let leaf = image.leaf();
            image.put(leaf as usize * PAGE, &[0; PAGE]);
            checking([page(leaf), "checksum".into()])
        },
    },
    Damage {
        name: "a value of some pages rotted",
        plant: |image| {
            let extent = image.extent(4000);
            image.flip(extent.page as usize * PAGE + 77);
            checking([format!("value at page {}:", extent.page), "checksum".into()])
        },
    },
    Damage {
        name: "a part of a long value rotted",
        plant: |image| {
            let extent = image.extent(1_500_000);
            image.flip(extent.page as usize * PAGE + 2_200_000);
            checking([format!("value at page {}:", extent.page), "checksum of part 2".into()])
        },
    },
    Damage {
        name: "the table of a long value rotted",
        plant: |image| {
            let extent = image.extent(1_500_000);
            let length = image.u64_at(extent.reference + 8) as usize;
            image.flip(extent.page as usize * PAGE + length.next_multiple_of(4));
            checking([
                format!("value at page {}:", extent.page),
                "checksum of its table".into(),
            ])
        },
    },
    // Pages in the wrong place.
    Damage {
        name: "a page was written over another one",
        plant: |image| {
            let leaves = image.leaves();
            let (from, to) = (leaves[leaves.len() - 2], image.leaf());
            let bytes = image.data[from as usize * PAGE..][..PAGE].to_vec();
            image.put(to as usize * PAGE, &bytes);
            checking([page(to), format!("it says it is page {from}")])
        },
    },
    Damage {
        name: "a page is younger than the tree",
        plant: |image| {
            let leaf = image.leaf();
            image.put(leaf as usize * PAGE + 8, &(1u64 << 40).to_le_bytes());
            image.seal(leaf);
            checking([page(leaf), "younger".into()])
        },
    },
    Damage {
        name: "a child is of the wrong kind",
        plant: |image| {
            let branch = image.lowest_branch();
            let other = image.root();
            image.put_child(branch, 3, other);
            image.seal(branch);
            checking([page(other)])
        },
    },
    Damage {
        name: "a child lies beyond the file",
        plant: |image| {
            let branch = image.lowest_branch();
            let beyond = (image.data.len() / PAGE) as u32 + 5;
            image.put_child(branch, 3, beyond);
            image.seal(branch);
            checking([page(beyond).trim().into(), "ends before".into()])
        },
    },
    Damage {
        name: "the device has lost a write of a page",
        plant: |image| {
            // An older version of the same page: valid, but not the version that its parent branch refers to.
            let leaf = image.leaf();
            let sound = image.data.clone();
            image.put(leaf as usize * PAGE + 8, &1u64.to_le_bytes());
            image.seal(leaf);
            let older = image.data[leaf as usize * PAGE..][..PAGE].to_vec();
            image.data = sound;
            image.put(leaf as usize * PAGE, &older);
            checking([page(leaf), "another version".into()])
        },
    },
    // Pages used twice, and pages lost.
    Damage {
        name: "two children are one page",
        plant: |image| {
            let branch = image.lowest_branch();
            let other = image.child_page(branch, 9);
            image.put_child(branch, 3, other);
            image.seal(branch);
            checking([page(other), "used twice".into()])
        },
    },
    Damage {
        name: "a page has lost what refers to it",
        plant: |image| {
            let branch = image.lowest_branch();
            let (lost, other) = (image.child_page(branch, 3), image.child_page(branch, 9));
            image.put_child(branch, 3, other);
            image.seal(branch);
            checking(["nothing refers to them".into(), lost.to_string()])
        },
    },
    Damage {
        name: "a value lies on a page of the tree",
        plant: |image| {
            let (extent, leaf) = (image.extent(4000), image.leaf());
            image.put(extent.reference, &leaf.to_le_bytes());
            image.seal(extent.leaf);
            checking([page(leaf), "used twice".into()])
        },
    },
    // Free space.
    Damage {
        name: "a used page counts as free",
        plant: |image| {
            let leaf = image.leaf();
            image.set_used(leaf, false);
            checking([page(leaf), "counts as free".into()])
        },
    },
    Damage {
        name: "a page of a value counts as free",
        plant: |image| {
            let inside = image.extent(1_500_000).page + 7;
            image.set_used(inside, false);
            checking([page(inside), "counts as free".into()])
        },
    },
    Damage {
        name: "a free page counts as used",
        plant: |image| {
            let free = image.free_page();
            image.set_used(free, true);
            checking(["nothing refers to them".into(), free.to_string()])
        },
    },
    Damage {
        name: "the bitmap of used pages rotted",
        plant: |image| {
            let (bitmap, _) = image.bitmap();
            image.flip(bitmap as usize * PAGE + 10);
            opening([page(bitmap), "bitmap".into(), "checksum".into()])
        },
    },
    // Order.
    Damage {
        name: "two pairs have changed places",
        plant: |image| {
            let leaf = image.leaf();
            image.swap_pairs(leaf, 0);
            image.seal(leaf);
            checking([page(leaf), "follows".into()])
        },
    },
    Damage {
        name: "a key belongs to another page",
        plant: |image| {
            let leaf = image.leaf();
            image.enlarge_last_key(leaf);
            image.seal(leaf);
            checking([page(leaf), "outside the range".into()])
        },
    },
    Damage {
        name: "two separators have changed places",
        plant: |image| {
            let branch = image.lowest_branch();
            let at = image.separator(branch, 4);
            let (one, other) = image.data[at..at + 16].split_at_mut(8);
            one.swap_with_slice(other);
            image.seal(branch);
            checking([page(branch), "separator".into(), "follows".into()])
        },
    },
    Damage {
        name: "the head of a key is another one's",
        plant: |image| {
            let leaf = image.leaf();
            image.flip(image.head(leaf, 1));
            image.seal(leaf);
            checking([page(leaf), "wrong head".into()])
        },
    },
    Damage {
        name: "the tag of a key is another one's",
        plant: |image| {
            let leaf = image.leaf();
            image.flip(image.tag(leaf, 1));
            image.seal(leaf);
            checking([page(leaf), "wrong tag".into()])
        },
    },
    // Counts.
    Damage {
        name: "a branch has the wrong count of a child",
        plant: |image| {
            let branch = image.lowest_branch();
            let at = image.child_count(branch, 5);
            let count = image.u16_at(at) + 1;
            image.put(at, &count.to_le_bytes());
            image.seal(branch);
            checking([page(branch), "wrong count".into(), "child 5".into()])
        },
    },
    Damage {
        name: "a branch forgets that there are long values below",
        plant: |image| {
            let branch = image.lowest_branch();
            let at = image.child_count(branch, 5);
            let count = image.u16_at(at) ^ 1 << 15;
            image.put(at, &count.to_le_bytes());
            image.seal(branch);
            checking([page(branch), "flag of child 5".into()])
        },
    },
    Damage {
        name: "the root's count is wrong",
        plant: |image| {
            image.change_meta(|meta| meta[56] ^= 1);
            checking(["the root says".into()])
        },
    },
    // Meta pages.
    Damage {
        name: "one copy of the newest meta page rotted",
        plant: |image| {
            let at = image.newest_meta() + TO_COPY_B;
            image.flip(at + 60);
            checking(["meta page".into(), format!("page {}", at / PAGE)])
        },
    },
    Damage {
        name: "both copies of the newest meta page rotted",
        plant: |image| {
            let at = image.newest_meta();
            [0, TO_COPY_B].iter().for_each(|copy| image.flip(at + copy + 60));
            opening(["meta page".into(), "a newer state".into()])
        },
    },
    Damage {
        name: "all meta pages rotted",
        plant: |image| {
            (0..4).for_each(|slot| image.flip(slot * TO_OTHER_SEQUENCE + 60));
            opening(["no intact meta page".into()])
        },
    },
    Damage {
        name: "the meta page names another root",
        plant: |image| {
            let leaf = image.leaf();
            image.change_meta(|meta| meta[76..80].copy_from_slice(&leaf.to_le_bytes()));
            checking([page(leaf)])
        },
    },
    // The file as a whole.
    Damage {
        name: "the end of the file is missing",
        plant: |image| {
            let pages = image.u32_at(image.newest_meta() + 96) as usize;
            image.data.truncate((pages - 3) * PAGE);
            opening(["ends 3 pages before".into()])
        },
    },
];
