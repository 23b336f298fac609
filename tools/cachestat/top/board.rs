//! What is known of every page watched, and what the user looks at.

use std::collections::VecDeque;

use spoc_cache::stats::layout::Counter;
use spoc_page::PageName;

use super::detail::Detail;
use crate::rates::{Interval, Sample};

/// Points of the past that are kept a page: what the widest screen can show.
const PAST_MAX: usize = 512;

/// A page at one look.
#[derive(Debug)]
pub struct Seen {
    /// Process and number of the page.
    pub name: PageName,
    /// Command name, or empty.
    pub command: String,
    /// What the page counts, or empty.
    pub label: String,
    /// Its figures.
    pub sample: Sample,
}

/// Rates at one moment of the past, as a sparkline draws them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Point {
    /// 10⁶ bytes copied a second.
    pub mb_per_s: u64,
    /// ms of waiting in a second.
    pub stall_ms: u64,
    /// Groups asked for in a second.
    pub requests: u64,
}

/// One page over time.
#[derive(Debug)]
pub struct Watched {
    /// The latest look.
    pub seen: Seen,
    /// What happened since the look before; since the start for a page that is new.
    pub interval: Interval,
    /// The past, oldest first.
    pub past: VecDeque<Point>,
}

impl Watched {
    fn new(seen: Seen) -> Watched {
        let interval = Interval::since_start(seen.sample.clone());
        Watched { seen, interval, past: VecDeque::new() }
    }

    fn renew(&mut self, seen: Seen) {
        self.interval = Interval::between(&self.seen.sample, seen.sample.clone());
        self.seen = seen;
        if self.past.len() == PAST_MAX {
            self.past.pop_front();
        }
        self.past.push_back(Point {
            mb_per_s: whole(self.interval.mb_per_s()),
            stall_ms: whole(self.interval.stall_ms_per_s()),
            requests: whole(self.interval.rate(self.interval.count(Counter::Requested))),
        });
    }
}

/// A damaged page may claim any rate; casts of floats saturate.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(rate: f64) -> u64 {
    rate.round() as u64
}

/// What the lower half shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pane {
    /// Rates over time, and where the time goes.
    #[default]
    Rates,
    /// Which groups are held, layer by layer.
    Slots,
    /// The groups used most.
    Hot,
    /// Misses by reason.
    Misses,
    /// The newest events.
    Events,
    /// What is wrong, and what more slots would buy.
    Advice,
}

impl Pane {
    /// Every pane, in the order of the tabs.
    pub const ALL: [Pane; 6] =
        [Pane::Rates, Pane::Slots, Pane::Hot, Pane::Misses, Pane::Events, Pane::Advice];

    /// Its tab.
    pub fn title(self) -> &'static str {
        match self {
            Pane::Rates => "1 rates",
            Pane::Slots => "2 slots",
            Pane::Hot => "3 hot",
            Pane::Misses => "4 misses",
            Pane::Events => "5 events",
            Pane::Advice => "6 advice",
        }
    }

    fn step(self, by: usize) -> Pane {
        Pane::ALL[(self as usize + by) % Pane::ALL.len()]
    }
}

/// Which page comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// By process id and page.
    #[default]
    Pid,
    /// The most waited for first.
    Stall,
    /// The fastest copies first.
    Bytes,
}

impl Order {
    /// As the heading says it.
    pub fn as_str(self) -> &'static str {
        match self {
            Order::Pid => "pid",
            Order::Stall => "stall",
            Order::Bytes => "MB/s",
        }
    }
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Move the choice by so many pages.
    Move(isize),
    /// Scroll the lower half by so many lines.
    Scroll(isize),
    /// Show this.
    Show(Pane),
    /// Show the next.
    NextPane,
    /// Show the one before.
    PreviousPane,
    /// Another order.
    Sort,
    /// Stop looking, or go on.
    Pause,
    /// Show or hide the keys.
    Help,
    /// End.
    Quit,
}

/// Everything that is drawn.
#[derive(Debug, Default)]
pub struct Board {
    /// Pages in the order shown.
    pub watched: Vec<Watched>,
    /// The page whose details are shown.
    pub chosen: Option<PageName>,
    /// The details.
    pub detail: Option<Detail>,
    /// Which of them.
    pub pane: Pane,
    /// First line shown of a long pane.
    pub scroll: usize,
    /// Order of the pages.
    pub order: Order,
    /// No looks are taken.
    pub is_paused: bool,
    /// The keys are shown.
    pub shows_help: bool,
}

impl Board {
    /// Takes in a look at all pages: those that are gone leave, new ones join.
    pub fn update(&mut self, seen: Vec<Seen>) {
        let mut before: Vec<Watched> = std::mem::take(&mut self.watched);
        for seen in seen {
            match before.iter().position(|watched| watched.seen.name == seen.name) {
                Some(index) => {
                    let mut watched = before.swap_remove(index);
                    watched.renew(seen);
                    self.watched.push(watched);
                }
                None => self.watched.push(Watched::new(seen)),
            }
        }
        self.sort();
        if self.place().is_none() {
            self.chosen = self.watched.first().map(|watched| watched.seen.name);
            self.detail = None;
            self.scroll = 0;
        }
    }

    /// Where the chosen page stands.
    pub fn place(&self) -> Option<usize> {
        self.watched.iter().position(|watched| Some(watched.seen.name) == self.chosen)
    }

    /// The chosen page.
    pub fn chosen(&self) -> Option<&Watched> {
        self.watched.get(self.place()?)
    }

    /// The lines of the pane shown; none for the rates, which are drawn.
    pub fn lines(&self) -> &[String] {
        let Some(detail) = &self.detail else { return &[] };
        match self.pane {
            Pane::Rates => &[],
            Pane::Slots => &detail.slots,
            Pane::Hot => &detail.hot,
            Pane::Misses => &detail.misses,
            Pane::Events => &detail.events,
            Pane::Advice => &detail.advice,
        }
    }

    /// Does what a key asks for; [`Action::Quit`] and the details are the caller's.
    pub fn act(&mut self, action: Action) {
        match action {
            Action::Move(by) => self.move_by(by),
            Action::Scroll(by) => {
                let last = self.lines().len().saturating_sub(1);
                self.scroll = self.scroll.saturating_add_signed(by).min(last);
            }
            Action::Show(pane) => self.show(pane),
            Action::NextPane => self.show(self.pane.step(1)),
            Action::PreviousPane => self.show(self.pane.step(Pane::ALL.len() - 1)),
            Action::Sort => {
                self.order = match self.order {
                    Order::Pid => Order::Stall,
                    Order::Stall => Order::Bytes,
                    Order::Bytes => Order::Pid,
                };
                self.sort();
            }
            Action::Pause => self.is_paused = !self.is_paused,
            Action::Help => self.shows_help = !self.shows_help,
            Action::Quit => {}
        }
    }

    fn move_by(&mut self, by: isize) {
        let last = self.watched.len().saturating_sub(1);
        let place = self.place().unwrap_or(0).saturating_add_signed(by).min(last);
        let chosen = self.watched.get(place).map(|watched| watched.seen.name);
        if chosen != self.chosen {
            self.chosen = chosen;
            self.detail = None;
            self.scroll = 0;
        }
    }

    fn show(&mut self, pane: Pane) {
        self.pane = pane;
        self.scroll = 0;
    }

    fn sort(&mut self) {
        let by_name = |watched: &Watched| {
            let PageName { process, number } = watched.seen.name;
            (process.pid, process.start_ticks, number)
        };
        self.watched.sort_by_key(by_name);
        match self.order {
            Order::Pid => {}
            Order::Stall => {
                self.watched.sort_by_key(|one| std::cmp::Reverse(whole(one.interval.stall_ms_per_s())));
            }
            Order::Bytes => {
                self.watched.sort_by_key(|one| std::cmp::Reverse(whole(one.interval.mb_per_s())));
            }
        }
    }
}
