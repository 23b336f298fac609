//! `cachestat top`: the pages of any number of processes, live, on the whole screen.

mod board;
mod detail;
mod draw;
mod gather;
mod keys;
mod rates;

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossterm::event::{self, Event};
use nix::sys::signal::{SigSet, Signal};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::json;
use spoc_tools::failure::{Failure, Result};
use spoc_tools::out::{Out, json_line, write_line};

use board::{Action, Board, Pane};

/// A signal is noticed after this long at most.
const SIGNAL_CHECK: Duration = Duration::from_millis(100);
/// Size of the one screen that `--once` prints.
const ONCE_SIZE: (u16, u16) = (120, 32);

/// Runs the view until somebody ends it.
///
/// # Errors
/// `usage` without a terminal, `io_error` when the terminal cannot be driven.
pub fn run(wanted: &[String], every: Duration) -> Result<()> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Failure::usage(
            "top wants a terminal; `top --once` prints one screen, with --json as JSON",
        ));
    }
    let ended = watch_signals()?;
    let failed = |error: std::io::Error| Failure::new("io_error", format_args!("terminal: {error}"));
    // Restores the screen on a panic too.
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let result = live(&mut terminal, wanted, every, &ended).map_err(failed);
    let restored = ratatui::try_restore().map_err(failed);
    result.and(restored)
}

/// Prints one screen, or with JSON a value with an entry a page, and ends.
///
/// # Errors
/// `no_target` when something is wanted and not there.
pub fn once(wanted: &[String], out: Out) -> Result<()> {
    let (seen, unread) = gather::look(wanted);
    if seen.is_empty() && !wanted.is_empty() {
        return Err(Failure::new(
            "no_target",
            format_args!("no process \"{}\" with a statistics page", wanted.join("\", \"")),
        ));
    }
    let mut board = Board::default();
    board.update(seen);
    if out.is_json() {
        let page = |watched: &board::Watched| {
            let seen = &watched.seen;
            let mut page = watched.interval.json(seen.name.process.pid, Some(&seen.command));
            page["page"] = json!(seen.name.number);
            page["label"] = json!(seen.label);
            page
        };
        json_line(&json!({ "pages": board.watched.iter().map(page).collect::<Vec<_>>(), "unread": unread }));
        return Ok(());
    }
    board.detail = board.chosen.and_then(gather::details);
    let (width, height) = ONCE_SIZE;
    let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
    let Ok(_) = terminal.draw(|frame| draw::draw(frame, &board, &note(unread, None)));
    write_line(&screen_text(terminal.backend()));
    Ok(())
}

/// The screen as lines without their trailing spaces.
fn screen_text(backend: &TestBackend) -> String {
    let buffer = backend.buffer();
    let row = |y: u16| (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    let rows: Vec<String> = (0..buffer.area.height).map(|y| row(y).trim_end().to_owned()).collect();
    rows.join("\n").trim_end().to_owned()
}

fn note(unread: usize, every: Option<Duration>) -> String {
    let every = every.map_or_else(String::new, |every| format!("every {} s", every.as_secs_f64()));
    match unread {
        0 => every,
        _ => format!("{unread} cannot be read  {every}"),
    }
}

fn live(
    terminal: &mut ratatui::DefaultTerminal,
    wanted: &[String],
    every: Duration,
    ended: &AtomicBool,
) -> std::io::Result<()> {
    let mut board = Board::default();
    let mut unread = 0;
    let mut due = Instant::now();
    while !ended.load(Ordering::Relaxed) {
        if Instant::now() >= due {
            due = Instant::now() + every;
            if !board.is_paused {
                let (seen, not_read) = gather::look(wanted);
                unread = not_read;
                board.update(seen);
                board.detail = board.chosen.and_then(gather::details);
            }
        }
        if board.detail.is_none() && board.pane != Pane::Rates {
            board.detail = board.chosen.and_then(gather::details);
        }
        terminal.draw(|frame| draw::draw(frame, &board, &note(unread, Some(every))))?;
        if wait(&mut board, due, ended)? {
            break;
        }
    }
    Ok(())
}

/// Waits for a key that changes something, a new size or the next look; whether to end.
fn wait(board: &mut Board, due: Instant, ended: &AtomicBool) -> std::io::Result<bool> {
    while !ended.load(Ordering::Relaxed) {
        let left = due.saturating_duration_since(Instant::now());
        if event::poll(left.min(SIGNAL_CHECK))? {
            match event::read()? {
                Event::Key(key) => match keys::action(key) {
                    Some(Action::Quit) => return Ok(true),
                    Some(action) => {
                        board.act(action);
                        return Ok(false);
                    }
                    None => {}
                },
                Event::Resize(..) => return Ok(false),
                _ => {}
            }
        } else if left.is_zero() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A flag that a signal to end sets, so that the screen is restored first.
fn watch_signals() -> Result<Arc<AtomicBool>> {
    let ended = Arc::new(AtomicBool::new(false));
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    let flag = Arc::clone(&ended);
    let failed = |error: &dyn std::fmt::Display| Failure::new("internal", format_args!("signals: {error}"));
    signals.thread_block().map_err(|error| failed(&error))?;
    let wait = move || {
        if signals.wait().is_ok() {
            flag.store(true, Ordering::Relaxed);
        }
    };
    std::thread::Builder::new().name("spoc-signals".into()).spawn(wait).map_err(|error| failed(&error))?;
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::Sample;
    use board::Seen;
    use detail::Detail;
    use spoc_cache::stats::layout::{self as at, Counter};
    use spoc_cache::stats::{Counters, Reader};
    use spoc_page::{PageName, ProcessIdentity};
    use std::sync::atomic::Ordering::Relaxed;

    fn name(pid: u32, number: u32) -> PageName {
        PageName { process: ProcessIdentity { pid, start_ticks: 1, boot_id: 2 }, number }
    }

    fn seen(name: PageName, label: &str, counters: &Counters) -> Seen {
        let page = Reader::new(counters.words()).expect("a page");
        Seen { name, command: "engine".into(), label: label.into(), sample: Sample::take(&page) }
    }

    fn count(counters: &Counters, counter: Counter, by: u64) {
        counters.words()[at::COUNTERS_AT + counter as usize].fetch_add(by, Relaxed);
    }

    /// A page with three slots of 4 KiB, one resident.
    fn page() -> Counters {
        let counters = Counters::on_heap(3);
        let words = counters.words();
        words[at::H_SLOTS].store(3, Relaxed);
        words[at::H_STRIDE_BYTES].store(4096, Relaxed);
        words[at::SLOTS_AT + at::R_KEY].store((1 << 32) | 17, Relaxed);
        words[at::SLOTS_AT + at::R_GENERATION_STATE].store((1 << 8) | 2, Relaxed);
        words[at::SNAPSHOTS_AT + at::S_STATES].store(2, Relaxed);
        words[at::SNAPSHOTS_AT + at::S_STATES + 2].store(1, Relaxed);
        counters
    }

    fn screen(board: &Board, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen");
        terminal.draw(|frame| draw::draw(frame, board, "a note")).expect("drawn");
        screen_text(terminal.backend())
    }

    #[test]
    fn pages_come_stay_and_go() {
        let (one, two) = (page(), page());
        let mut board = Board::default();
        assert!(screen(&board, 120, 20).contains("no process with a statistics page"));
        board.update(vec![seen(name(7, 0), "experts", &one), seen(name(9, 0), "", &two)]);
        assert_eq!(board.chosen, Some(name(7, 0)));
        count(&two, Counter::StallNs, 1_000_000_000);
        count(&two, Counter::Hits, 3);
        count(&two, Counter::Misses, 1);
        board.update(vec![seen(name(7, 0), "experts", &one), seen(name(9, 0), "", &two)]);
        let text = screen(&board, 120, 30);
        for part in
            ["2 pages, by pid", "a note", "experts", "#0", "75.0", "2/3", "slots of 4 KiB", "1 resident"]
        {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        board.act(Action::Sort);
        assert_eq!(board.watched[0].seen.name, name(9, 0), "the most waited for first");
        assert_eq!(board.chosen, Some(name(7, 0)), "the choice stays with its page");
        board.update(vec![seen(name(9, 0), "", &two)]);
        assert_eq!(board.chosen, Some(name(9, 0)));
        board.update(Vec::new());
        assert_eq!(board.chosen, None);
    }

    #[test]
    fn every_pane_at_every_size() {
        let page = page();
        let mut board = Board::default();
        board.update(vec![seen(name(7, 0), "experts", &page)]);
        board.detail = Some(Detail::take(&Reader::new(page.words()).expect("a page")));
        for (pane, told) in [
            (Pane::Slots, "MODEL LAYER"),
            (Pane::Hot, "1/17"),
            (Pane::Misses, "never asked for before"),
            (Pane::Events, "WHAT"),
            (Pane::Advice, "too little was asked for"),
            (Pane::Rates, "waits for the disk"),
        ] {
            board.act(Action::Show(pane));
            let text = screen(&board, 120, 32);
            assert!(text.contains(told), "{pane:?}\n{text}");
            for (width, height) in [(1, 1), (20, 3), (40, 10), (300, 100)] {
                screen(&board, width, height);
            }
        }
        board.act(Action::Help);
        assert!(screen(&board, 120, 32).contains("choose a page"));
    }

    #[test]
    fn moving_and_scrolling_stop_at_the_ends() {
        let page = page();
        let mut board = Board::default();
        board.update((0..3).map(|number| seen(name(7, number), "", &page)).collect());
        for (by, at) in [(1, 1), (5, 2), (-9, 0), (isize::MIN, 0)] {
            board.act(Action::Move(by));
            assert_eq!(board.place(), Some(at));
        }
        board.detail = Some(Detail { hot: vec![String::new(); 5], ..Detail::default() });
        board.act(Action::Show(Pane::Hot));
        board.act(Action::Scroll(100));
        assert_eq!(board.scroll, 4);
        board.act(Action::Scroll(isize::MIN));
        assert_eq!(board.scroll, 0);
        board.act(Action::PreviousPane);
        assert_eq!(board.pane, Pane::Slots);
    }

    #[test]
    fn a_damaged_page_is_drawn() {
        let counters = page();
        for counter in Counter::ALL {
            counters.words()[at::COUNTERS_AT + counter as usize].store(u64::MAX, Relaxed);
        }
        let mut board = Board::default();
        board.update(vec![seen(name(7, 0), "\u{1b}[31m", &counters)]);
        board.update(vec![seen(name(7, 0), "\u{1b}[31m", &counters)]);
        screen(&board, 120, 32);
    }
}
