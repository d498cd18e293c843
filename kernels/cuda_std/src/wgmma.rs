//! Warpgroup matrix products: 128 threads multiply a 64-row A by a B of N columns, asynchronously.
//!
//! `acc` is a thread's share of the 64 x N product in f32: element `4 * g + 2 * r + c` is row
//! `16 * (warp % 4) + lane / 4 + 8 * r`, column `8 * g + 2 * (lane % 4) + c`. Registers handed to a product belong to
//! the hardware until the [`Accumulator::wait`] that covers it.

use crate::element::Half;

/// Where an operand lies in shared memory and how: the 64-bit matrix descriptor of the PTX ISA (section on
/// asynchronous warpgroup matrices), with the 128-byte swizzle.
#[derive(Clone, Copy)]
pub struct Descriptor(pub u64);

impl Descriptor {
    /// A matrix at shared `address` (aligned to 1024 with the offsets inside a swizzle atom added), with the leading
    /// and the stride byte offsets between its 8-row atoms.
    #[inline(always)]
    pub const fn new(address: u32, leading_bytes: u32, stride_bytes: u32) -> Self {
        const SWIZZLE_128: u64 = 1 << 62;
        Descriptor(
            ((address & 0x3ffff) >> 4) as u64
                | ((leading_bytes >> 4) as u64) << 16
                | ((stride_bytes >> 4) as u64) << 32
                | SWIZZLE_128,
        )
    }

    /// The same matrix `bytes` further on (a multiple of 16).
    #[inline(always)]
    pub const fn advance(self, bytes: u32) -> Self {
        Descriptor(self.0 + (bytes >> 4) as u64)
    }
}

/// Orders the registers of accumulators and fragments before the products that follow (`wgmma.fence`).
#[inline(always)]
pub fn fence() {
    device!({ unsafe { core::arch::asm!("wgmma.fence.sync.aligned;", options(nostack)) } }
        else { host!("wgmma::fence", () => crate::sim::wgmma::fence()) })
}

/// Closes the group of the products issued since the last one (`wgmma.commit_group`).
#[inline(always)]
pub fn commit_group() {
    device!({ unsafe { core::arch::asm!("wgmma.commit_group.sync.aligned;", options(nostack)) } }
        else { host!("wgmma::commit_group", () => crate::sim::wgmma::commit_group()) })
}

/// A thread's accumulators of a 64 x N product, `N / 2` of them.
pub trait Accumulator {
    /// Starts `acc = A B + (accumulate ? acc : 0)` over 16 columns of A, both operands in shared memory, both with
    /// the contraction dimension contiguous (`wgmma.mma_async`).
    ///
    /// # Safety
    /// All 128 threads of the warpgroup, after [`fence`]; the operands stay as they are until the wait.
    unsafe fn multiply_shared<T: Half>(&mut self, a: Descriptor, b: Descriptor, accumulate: bool);

    /// Starts `acc += A B` over 16 columns of A, A in registers (the layout of the accumulators, packed in pairs), B in
    /// shared memory with its N dimension contiguous (`wgmma.mma_async`, B transposed).
    ///
    /// # Safety
    /// As for [`multiply_shared`](Self::multiply_shared).
    unsafe fn multiply_registers<T: Half>(&mut self, a: [u32; 4], b: Descriptor);

    /// Starts `acc = A B + (accumulate ? acc : 0)` over 16 columns of A, A in registers, B in shared memory with the
    /// contraction dimension contiguous (`wgmma.mma_async`).
    ///
    /// # Safety
    /// As for [`multiply_shared`](Self::multiply_shared).
    unsafe fn multiply_registers_by_rows<T: Half>(&mut self, a: [u32; 4], b: Descriptor, accumulate: bool);

    /// Waits until at most `PENDING` groups are unfinished (`wgmma.wait_group`); the accumulators that it re-defines
    /// can be read afterwards, and not before.
    ///
    /// # Safety
    /// All 128 threads of the warpgroup; this accumulator's group is among the finished ones.
    unsafe fn wait<const PENDING: u32>(&mut self);
}

macro_rules! accumulator {
    ($n:literal, $count:literal, [$($i:literal)*], $list:literal) => {
        impl Accumulator for [f32; $count] {
            #[inline(always)]
            unsafe fn multiply_shared<T: Half>(&mut self, a: Descriptor, b: Descriptor, accumulate: bool) {
                device!({
                    if T::BF16 { accumulator!(@shared "bf16", $n, self, [$($i)*], $list, a, b, accumulate) }
                    else { accumulator!(@shared "f16", $n, self, [$($i)*], $list, a, b, accumulate) }
                } else { host!("wgmma::Accumulator::multiply_shared", (a, b, accumulate) => crate::sim::wgmma::multiply(self, Ok(a.0), (b.0, false), T::BF16, accumulate)) })
            }
            #[inline(always)]
            unsafe fn multiply_registers<T: Half>(&mut self, a: [u32; 4], b: Descriptor) {
                device!({
                    if T::BF16 { accumulator!(@registers "bf16", $n, self, [$($i)*], $list, a, b) }
                    else { accumulator!(@registers "f16", $n, self, [$($i)*], $list, a, b) }
                } else { host!("wgmma::Accumulator::multiply_registers", (a, b) => crate::sim::wgmma::multiply(self, Err(a), (b.0, true), T::BF16, true)) })
            }
            #[inline(always)]
            unsafe fn multiply_registers_by_rows<T: Half>(&mut self, a: [u32; 4], b: Descriptor, accumulate: bool) {
                device!({
                    if T::BF16 { accumulator!(@by_rows "bf16", $n, self, [$($i)*], $list, a, b, accumulate) }
                    else { accumulator!(@by_rows "f16", $n, self, [$($i)*], $list, a, b, accumulate) }
                } else { host!("wgmma::Accumulator::multiply_registers_by_rows", (a, b, accumulate) => crate::sim::wgmma::multiply(self, Err(a), (b.0, false), T::BF16, accumulate)) })
            }
            #[inline(always)]
            unsafe fn wait<const PENDING: u32>(&mut self) {
                device!({ unsafe { core::arch::asm!(
                    concat!("wgmma.wait_group.sync.aligned {pending}; // ", $list),
                    $(inout(reg32) self[$i],)* pending = const PENDING, options(nostack)) } }
                else { host!("wgmma::Accumulator::wait", () => crate::sim::wgmma::wait(self, PENDING)) })
            }
        }
    };
    (@shared $type:literal, $n:literal, $acc:ident, [$($i:literal)*], $list:literal, $a:ident, $b:ident, $accumulate:ident) => {
        unsafe { core::arch::asm!(
            "{{ .reg .pred p; setp.ne.b32 p, {accumulate}, 0;",
            concat!("wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $type, ".", $type, " {{", $list, "}}, {a}, {b}, p, 1, 1, 0, 0; }}"),
            $(inout(reg32) $acc[$i],)*
            a = in(reg64) $a.0, b = in(reg64) $b.0, accumulate = in(reg32) $accumulate as u32, options(nostack)) }
    };
    (@by_rows $type:literal, $n:literal, $acc:ident, [$($i:literal)*], $list:literal, $a:ident, $b:ident, $accumulate:ident) => {
        unsafe { core::arch::asm!(
            "{{ .reg .pred p; setp.ne.b32 p, {accumulate}, 0;",
            concat!("wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $type, ".", $type, " {{", $list, "}}, {{{a0}, {a1}, {a2}, {a3}}}, {b}, p, 1, 1, 0; }}"),
            $(inout(reg32) $acc[$i],)*
            a0 = in(reg32) $a[0], a1 = in(reg32) $a[1], a2 = in(reg32) $a[2], a3 = in(reg32) $a[3],
            b = in(reg64) $b.0, accumulate = in(reg32) $accumulate as u32, options(nostack)) }
    };
    (@registers $type:literal, $n:literal, $acc:ident, [$($i:literal)*], $list:literal, $a:ident, $b:ident) => {
        unsafe { core::arch::asm!(
            concat!("wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $type, ".", $type, " {{", $list, "}}, {{{a0}, {a1}, {a2}, {a3}}}, {b}, 1, 1, 1, 1;"),
            $(inout(reg32) $acc[$i],)*
            a0 = in(reg32) $a[0], a1 = in(reg32) $a[1], a2 = in(reg32) $a[2], a3 = in(reg32) $a[3],
            b = in(reg64) $b.0, options(nostack)) }
    };
}

accumulator!(64, 32, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31], "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}, {16}, {17}, {18}, {19}, {20}, {21}, {22}, {23}, {24}, {25}, {26}, {27}, {28}, {29}, {30}, {31}");
accumulator!(80, 40, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39], "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}, {16}, {17}, {18}, {19}, {20}, {21}, {22}, {23}, {24}, {25}, {26}, {27}, {28}, {29}, {30}, {31}, {32}, {33}, {34}, {35}, {36}, {37}, {38}, {39}");
accumulator!(96, 48, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47], "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}, {16}, {17}, {18}, {19}, {20}, {21}, {22}, {23}, {24}, {25}, {26}, {27}, {28}, {29}, {30}, {31}, {32}, {33}, {34}, {35}, {36}, {37}, {38}, {39}, {40}, {41}, {42}, {43}, {44}, {45}, {46}, {47}");
accumulator!(112, 56, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55], "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}, {16}, {17}, {18}, {19}, {20}, {21}, {22}, {23}, {24}, {25}, {26}, {27}, {28}, {29}, {30}, {31}, {32}, {33}, {34}, {35}, {36}, {37}, {38}, {39}, {40}, {41}, {42}, {43}, {44}, {45}, {46}, {47}, {48}, {49}, {50}, {51}, {52}, {53}, {54}, {55}");
accumulator!(128, 64, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63], "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}, {16}, {17}, {18}, {19}, {20}, {21}, {22}, {23}, {24}, {25}, {26}, {27}, {28}, {29}, {30}, {31}, {32}, {33}, {34}, {35}, {36}, {37}, {38}, {39}, {40}, {41}, {42}, {43}, {44}, {45}, {46}, {47}, {48}, {49}, {50}, {51}, {52}, {53}, {54}, {55}, {56}, {57}, {58}, {59}, {60}, {61}, {62}, {63}");
accumulator!(144, 72, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71], "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}, {16}, {17}, {18}, {19}, {20}, {21}, {22}, {23}, {24}, {25}, {26}, {27}, {28}, {29}, {30}, {31}, {32}, {33}, {34}, {35}, {36}, {37}, {38}, {39}, {40}, {41}, {42}, {43}, {44}, {45}, {46}, {47}, {48}, {49}, {50}, {51}, {52}, {53}, {54}, {55}, {56}, {57}, {58}, {59}, {60}, {61}, {62}, {63}, {64}, {65}, {66}, {67}, {68}, {69}, {70}, {71}");
accumulator!(160, 80, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79], "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}, {16}, {17}, {18}, {19}, {20}, {21}, {22}, {23}, {24}, {25}, {26}, {27}, {28}, {29}, {30}, {31}, {32}, {33}, {34}, {35}, {36}, {37}, {38}, {39}, {40}, {41}, {42}, {43}, {44}, {45}, {46}, {47}, {48}, {49}, {50}, {51}, {52}, {53}, {54}, {55}, {56}, {57}, {58}, {59}, {60}, {61}, {62}, {63}, {64}, {65}, {66}, {67}, {68}, {69}, {70}, {71}, {72}, {73}, {74}, {75}, {76}, {77}, {78}, {79}");
accumulator!(176, 88, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87], "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}, {16}, {17}, {18}, {19}, {20}, {21}, {22}, {23}, {24}, {25}, {26}, {27}, {28}, {29}, {30}, {31}, {32}, {33}, {34}, {35}, {36}, {37}, {38}, {39}, {40}, {41}, {42}, {43}, {44}, {45}, {46}, {47}, {48}, {49}, {50}, {51}, {52}, {53}, {54}, {55}, {56}, {57}, {58}, {59}, {60}, {61}, {62}, {63}, {64}, {65}, {66}, {67}, {68}, {69}, {70}, {71}, {72}, {73}, {74}, {75}, {76}, {77}, {78}, {79}, {80}, {81}, {82}, {83}, {84}, {85}, {86}, {87}");
accumulator!(192, 96, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95], "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}, {16}, {17}, {18}, {19}, {20}, {21}, {22}, {23}, {24}, {25}, {26}, {27}, {28}, {29}, {30}, {31}, {32}, {33}, {34}, {35}, {36}, {37}, {38}, {39}, {40}, {41}, {42}, {43}, {44}, {45}, {46}, {47}, {48}, {49}, {50}, {51}, {52}, {53}, {54}, {55}, {56}, {57}, {58}, {59}, {60}, {61}, {62}, {63}, {64}, {65}, {66}, {67}, {68}, {69}, {70}, {71}, {72}, {73}, {74}, {75}, {76}, {77}, {78}, {79}, {80}, {81}, {82}, {83}, {84}, {85}, {86}, {87}, {88}, {89}, {90}, {91}, {92}, {93}, {94}, {95}");
accumulator!(256, 128, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95 96 97 98 99 100 101 102 103 104 105 106 107 108 109 110 111 112 113 114 115 116 117 118 119 120 121 122 123 124 125 126 127], "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}, {16}, {17}, {18}, {19}, {20}, {21}, {22}, {23}, {24}, {25}, {26}, {27}, {28}, {29}, {30}, {31}, {32}, {33}, {34}, {35}, {36}, {37}, {38}, {39}, {40}, {41}, {42}, {43}, {44}, {45}, {46}, {47}, {48}, {49}, {50}, {51}, {52}, {53}, {54}, {55}, {56}, {57}, {58}, {59}, {60}, {61}, {62}, {63}, {64}, {65}, {66}, {67}, {68}, {69}, {70}, {71}, {72}, {73}, {74}, {75}, {76}, {77}, {78}, {79}, {80}, {81}, {82}, {83}, {84}, {85}, {86}, {87}, {88}, {89}, {90}, {91}, {92}, {93}, {94}, {95}, {96}, {97}, {98}, {99}, {100}, {101}, {102}, {103}, {104}, {105}, {106}, {107}, {108}, {109}, {110}, {111}, {112}, {113}, {114}, {115}, {116}, {117}, {118}, {119}, {120}, {121}, {122}, {123}, {124}, {125}, {126}, {127}");
