//! The syntax tree of a PTX module.
//!
//! Names keep their PTX spelling, including a leading `%` or `$`. Scoping is
//! not resolved here: a [`Block`] opens a scope for registers, variables and
//! labels (PTX ISA 4.4, 5.1), inner declarations shadow outer ones.

/// A place in the source text, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Pos {
    /// Line, from 1.
    pub line: u32,
    /// Column in bytes, from 1.
    pub column: u32,
}

impl std::fmt::Display for Pos {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A whole PTX file.
#[derive(Debug, Clone, PartialEq)]
pub struct Module {
    /// `.version major.minor`
    pub version: (u32, u32),
    /// `.target` list: the architecture first, then options such as `debug`.
    pub targets: Vec<String>,
    /// `.address_size`, 64 when absent.
    pub address_size: u32,
    /// Module-level variables and functions in source order.
    pub items: Vec<Item>,
    /// `.pragma` directives at module scope.
    pub directives: Vec<Directive>,
    /// `.file` directives: number and name.
    pub files: Vec<(u32, String)>,
}

/// A module-scope declaration.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// `.global`, `.const`, `.shared` variable (or `.tex`-style handles).
    Variable(Variable),
    /// `.entry` or `.func`, with or without a body.
    Function(Function),
    /// `.alias alias, target;`
    Alias {
        /// New name.
        name: String,
        /// Function it stands for.
        target: String,
        /// Its position.
        pos: Pos,
    },
}

/// Linking directive of a symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Linkage {
    /// Module-local.
    #[default]
    None,
    /// `.visible`
    Visible,
    /// `.extern`
    Extern,
    /// `.weak`
    Weak,
    /// `.common`
    Common,
}

/// State space of a declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// `.reg`
    Reg,
    /// `.sreg`
    Sreg,
    /// `.const`
    Const,
    /// `.global`
    Global,
    /// `.local`
    Local,
    /// `.param`
    Param,
    /// `.shared`
    Shared,
    /// `.tex` (deprecated, parsed only)
    Tex,
}

/// Fundamental type, as spelled without its dot (`u32`, `b128`, `pred`,
/// `f16x2`, `e4m3x2`, `texref`...). Not checked by the parser.
pub type TypeName = String;

/// A variable or parameter in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Variable {
    /// Position of its name.
    pub pos: Pos,
    /// Linkage.
    pub linkage: Linkage,
    /// State space.
    pub space: Space,
    /// `.align N`, bytes; `None` means the natural alignment of the type.
    pub align: Option<u32>,
    /// `.v2`, `.v4`, `.v8`: number of elements of a vector type, else 1.
    pub vector: u32,
    /// Element type.
    pub ty: TypeName,
    /// Name.
    pub name: String,
    /// Array dimensions; `None` is the open dimension of `name[]`.
    pub dims: Vec<Option<u64>>,
    /// Initialiser.
    pub init: Option<Init>,
    /// `.ptr [.space] [.align N]` of a kernel parameter.
    pub ptr: Option<PtrAttr>,
    /// `.attribute(...)` contents, verbatim, e.g. `.managed`.
    pub attributes: Vec<String>,
}

/// `.ptr` attribute of a kernel parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PtrAttr {
    /// State space the pointer points into, when given.
    pub space: Option<Space>,
    /// Alignment of the pointee, when given.
    pub align: Option<u32>,
}

/// Initial value of a variable.
#[derive(Debug, Clone, PartialEq)]
pub enum Init {
    /// A constant.
    Value(Imm),
    /// Address of a symbol plus a byte offset; `generic` for `generic(sym)`.
    Symbol {
        /// Symbol.
        name: String,
        /// Byte offset.
        offset: i64,
        /// Whether a generic address is meant.
        generic: bool,
        /// `mask(symbol)`: constant AND mask selecting a byte of the address.
        mask: Option<u64>,
    },
    /// `{ ... }`
    List(Vec<Init>),
    /// `name = value`, a field of a `.texref`, `.samplerref` or `.surfref`.
    Field {
        /// Property, e.g. `filter_mode`.
        name: String,
        /// Its value.
        value: Box<Init>,
    },
}

/// `.entry` or `.func`.
#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    /// Position of its name.
    pub pos: Pos,
    /// True for `.entry`.
    pub is_entry: bool,
    /// Linkage.
    pub linkage: Linkage,
    /// Name.
    pub name: String,
    /// Return parameters of a `.func`.
    pub returns: Vec<Variable>,
    /// Parameters (`.param`, or `.reg` for a `.func`).
    pub params: Vec<Variable>,
    /// `.reqntid` and the like, in source order.
    pub directives: Vec<Directive>,
    /// Body; `None` for a declaration.
    pub body: Option<Block>,
    /// `.noreturn`
    pub noreturn: bool,
}

/// A performance or launch directive such as `.maxntid 128, 1, 1` or
/// `.pragma "nounroll"`.
#[derive(Debug, Clone, PartialEq)]
pub struct Directive {
    /// Its position.
    pub pos: Pos,
    /// Name without its dot.
    pub name: String,
    /// Integer arguments.
    pub args: Vec<u64>,
    /// String or identifier arguments (`.pragma`, `.attribute`,
    /// `.abi_preserve`...), verbatim.
    pub strings: Vec<String>,
}

/// `{ ... }`
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Block {
    /// Statements in order.
    pub statements: Vec<Statement>,
    /// Position of the closing brace.
    pub end: Pos,
}

/// A statement of a function body.
#[derive(Debug, Clone, PartialEq)]
pub enum Statement {
    /// `.reg .b32 %r<10>, %x;`
    Registers(RegDecl),
    /// `.local`, `.shared`, `.param`, `.const`, `.global` variable; boxed, so that other statements
    /// are small.
    Variable(Box<Variable>),
    /// `name:`
    Label {
        /// Name.
        name: String,
        /// Its position.
        pos: Pos,
    },
    /// An instruction.
    Instruction(Instruction),
    /// Nested scope.
    Block(Block),
    /// `.pragma`, ... inside a body.
    Directive(Directive),
    /// `.loc`: where the instructions behind it come from.
    Location(Location),
    /// `name: .branchtargets a, b;`
    BranchTargets {
        /// Label naming the list.
        name: String,
        /// Labels.
        targets: Vec<String>,
        /// Its position.
        pos: Pos,
    },
    /// `name: .calltargets f, g;`
    CallTargets {
        /// Label naming the list.
        name: String,
        /// Functions.
        targets: Vec<String>,
        /// Its position.
        pos: Pos,
    },
    /// `name: .callprototype (ret) _ (params);`
    CallPrototype {
        /// Label naming the prototype.
        name: String,
        /// Return parameters.
        returns: Vec<Variable>,
        /// Parameters.
        params: Vec<Variable>,
        /// Its position.
        pos: Pos,
    },
}

/// `.loc file line column`; what function it was inlined into is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// Its position.
    pub pos: Pos,
    /// Number of the source file, see [`Module::files`].
    pub file: u32,
    /// Line there, from 1; 0 for code of no line.
    pub line: u32,
}

/// Register declaration.
#[derive(Debug, Clone, PartialEq)]
pub struct RegDecl {
    /// Its position.
    pub pos: Pos,
    /// `.v2`/`.v4` vector registers, else 1.
    pub vector: u32,
    /// Type.
    pub ty: TypeName,
    /// Names; `count` is the N of `%r<N>` (declares `%r0` .. `%r(N-1)`).
    pub names: Vec<(String, Option<u32>)>,
}

/// An instruction.
#[derive(Debug, Clone, PartialEq)]
pub struct Instruction {
    /// Position of its opcode.
    pub pos: Pos,
    /// `@p` or `@!p`.
    pub guard: Option<Guard>,
    /// Opcode up to the first dot, e.g. `cp`, `tcgen05`, `ld`.
    pub opcode: String,
    /// The modifiers, split at dots, without them and in source order:
    /// `cp.async.bulk.shared::cta.global` gives `async`, `bulk`, `shared::cta`, `global`.
    pub modifiers: Vec<String>,
    /// Operands in source order. For `call` see [`Operand::Call`].
    pub operands: Vec<Operand>,
}

/// Guard predicate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    /// `@!p`
    pub negated: bool,
    /// Register.
    pub register: String,
}

/// A constant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Imm {
    /// Integer (PTX integers are 64 bit), as its two's complement bits.
    /// `unsigned` is true for a `U` suffix.
    Int {
        /// Bits.
        bits: u64,
        /// `U` suffix, or a value above `i64::MAX`.
        unsigned: bool,
    },
    /// `0f3F800000`: bits of an f32.
    F32(u32),
    /// `0d...` or a decimal literal: bits of an f64.
    F64(u64),
}

/// An operand.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// A register, label, variable, function or special register, and
    /// `%tid.x` or `%v.x` with their component in the name.
    Ident(String),
    /// A constant (constant expressions are folded).
    Imm(Imm),
    /// `-x` or `!p` on a register operand.
    Unary {
        /// `-`, `!` or `~`.
        op: char,
        /// Operand.
        operand: Box<Operand>,
    },
    /// `symbol + constant` used as a value (`mov.u64 %rd, arr+16`).
    SymbolOffset {
        /// Symbol.
        name: String,
        /// Byte offset.
        offset: i64,
    },
    /// `{a, b, ...}`
    Vector(Vec<Operand>),
    /// `d | p`
    Pair(Box<Operand>, Box<Operand>),
    /// `[base + offset]`, `[imm]`; and `[map, {coords}]`,
    /// `[tmem], idesc`-style lists keep the rest in `rest`.
    Address {
        /// Register or symbol; `None` for an absolute address.
        base: Option<String>,
        /// Byte offset, or the absolute address.
        offset: i64,
        /// The operands behind the first comma inside the brackets.
        rest: Vec<Operand>,
    },
    /// `name[index]` used as a value or address outside brackets.
    Element {
        /// Array.
        name: String,
        /// Constant index.
        index: i64,
    },
    /// `name[register + offset]`, array indexing by a register (PTX ISA 6.4.2).
    IndexedElement {
        /// Array.
        name: String,
        /// Index register.
        index: String,
        /// Constant added to the index, in elements.
        offset: i64,
    },
    /// `_`
    Sink,
    /// Whole operand list of a `call`; boxed, so that other operands are small.
    Call(Box<Call>),
}

/// The operands of a `call`.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// `(r0, r1)`, else empty.
    pub returns: Vec<Operand>,
    /// Function name or register.
    pub target: String,
    /// Arguments.
    pub args: Vec<Operand>,
    /// Prototype or target-list label of an indirect call.
    pub prototype: Option<String>,
}
