use super::*;

const RELATIONS: [Relation; 3] = [Relation::Same, Relation::Other, Relation::None];

/// Which copies hold the newest contents. Knows nothing of the table: it follows the bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Copies {
    host: bool,
    home: bool,
    named: bool,
}

fn before(location: Location, relation: Relation) -> Copies {
    let home = location.is_device_current();
    Copies { host: location.is_host_current(), home, named: home && relation == Relation::Same }
}

fn after_moves(mut copies: Copies, moves: Moves, relation: Relation) -> Option<Copies> {
    if matches!(moves, Moves::BringBack | Moves::BringBackAndUpload) {
        // Only what is current may be brought back.
        if !copies.home {
            return None;
        }
        copies.host = true;
    }
    if matches!(moves, Moves::Upload | Moves::BringBackAndUpload) {
        if !copies.host {
            return None;
        }
        copies.named = true;
        copies.home |= relation == Relation::Same;
    }
    Some(copies)
}

fn after_operation(mut copies: Copies, operation: Operation, relation: Relation) -> Option<Copies> {
    let same = relation == Relation::Same;
    match operation {
        Operation::Get | Operation::ToCpu => copies.host.then_some(copies),
        Operation::Set => copies.host.then_some(Copies { host: true, home: false, named: false }),
        Operation::ToDevice | Operation::RangedRead | Operation::LaunchRead => copies.named.then_some(copies),
        Operation::RangedWrite | Operation::Stage | Operation::LaunchWrite => {
            copies.named.then_some(Copies { host: false, home: same, named: true })
        }
        Operation::FreeBuffer => {
            copies.named = false;
            copies.home &= !same;
            Some(copies)
        }
        Operation::FreeAll => Some(Copies { home: false, named: false, ..copies }),
        // The host memory is the device's from here on.
        Operation::Attach => copies.host.then_some(Copies { named: true, ..copies }),
        Operation::Acquire => Some(copies),
        // What the host holds is declared the newest.
        Operation::Publish => Some(Copies { host: true, home: same, named: true }),
    }
}

/// What the table says is current afterwards must be.
fn claims_hold(location: Location, next: Next, relation: Relation, copies: Copies) -> bool {
    let (claimed, is_named) = match next {
        Next::Released => return true,
        Next::Stays => (location, false),
        Next::Becomes(next) => (next, relation != Relation::None || location == Location::Cpu),
    };
    let device = if is_named { copies.named } else { copies.home };
    (!claimed.is_host_current() || copies.host) && (!claimed.is_device_current() || device)
}

#[test]
fn no_cell_claims_a_copy_that_is_not_there() {
    for location in Location::ALL {
        for operation in Operation::ALL {
            for relation in RELATIONS {
                let Outcome::Done(moves, next) = outcome(location, operation, relation) else { continue };
                let cell = format!("{operation:?} at {location} with {relation:?}: {moves:?}, {next:?}");
                // Publishing takes the host's word for it, whatever was newest before.
                let mut copies = before(location, relation);
                copies.host |= operation == Operation::Publish;
                let moved = after_moves(copies, moves, relation).expect(&cell);
                let done = after_operation(moved, operation, relation).expect(&cell);
                assert!(claims_hold(location, next, relation, done), "{cell}: {done:?}");
            }
        }
    }
}

#[test]
fn nothing_but_a_discard_loses_the_newest_copy() {
    for location in Location::ALL {
        for operation in Operation::ALL {
            for relation in RELATIONS {
                let Outcome::Done(moves, _) = outcome(location, operation, relation) else { continue };
                if moves == Moves::Discard {
                    assert_eq!(location, Location::DeviceOnly);
                    continue;
                }
                let mut copies = before(location, relation);
                copies.host |= operation == Operation::Publish;
                let done = after_moves(copies, moves, relation)
                    .and_then(|copies| after_operation(copies, operation, relation))
                    .expect("checked by the other test");
                assert!(done.host || done.home || done.named, "{operation:?} at {location}, {relation:?}");
            }
        }
    }
}

#[test]
fn a_relation_occurs_when_both_sides_have_a_device() {
    for location in Location::ALL {
        for operation in Operation::ALL {
            for relation in RELATIONS {
                let has_both = location != Location::Cpu && operation.names_device();
                let occurs = (relation == Relation::None) != has_both;
                let is_impossible = outcome(location, operation, relation) == Outcome::Impossible;
                assert_eq!(is_impossible, !occurs, "{operation:?} at {location}, {relation:?}");
            }
        }
    }
}

#[test]
fn no_transfer_moves_more_than_it_needs() {
    for location in Location::ALL {
        for operation in Operation::ALL {
            for relation in RELATIONS {
                let Outcome::Done(moves, _) = outcome(location, operation, relation) else { continue };
                let brings = matches!(moves, Moves::BringBack | Moves::BringBackAndUpload);
                assert!(!brings || !location.is_host_current(), "{operation:?} at {location}");
                let uploads = matches!(moves, Moves::Upload | Moves::BringBackAndUpload);
                let has_it = location.is_device_current() && relation == Relation::Same;
                // Publishing is the declaration that what the device has is not the newest.
                assert!(
                    !uploads || !has_it || operation == Operation::Publish,
                    "{operation:?} at {location}"
                );
            }
        }
    }
}

/// The printed contract and the code are the same table. `SPOC_WRITE_DOCS=1` rewrites the page.
#[test]
fn the_table_in_the_docs_is_the_table_in_the_code() {
    const BEGIN: &str = "<!-- location table: begin -->\n";
    const END: &str = "<!-- location table: end -->";
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/transfers.md");
    let page = std::fs::read_to_string(path).expect("docs/transfers.md");
    let begin = page.find(BEGIN).expect("the table's beginning") + BEGIN.len();
    let end = page.find(END).expect("the table's end");
    if std::env::var_os("SPOC_WRITE_DOCS").is_some() {
        let page = format!("{}{}{}", &page[..begin], table_as_markdown(), &page[end..]);
        std::fs::write(path, page).expect("writing docs/transfers.md");
        return;
    }
    assert_eq!(&page[begin..end], table_as_markdown());
}
