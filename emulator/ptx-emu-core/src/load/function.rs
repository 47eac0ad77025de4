//! Functions: signatures, scopes, labels, and the loop over instructions.

use crate::Family;
use crate::decode::scope::{Name, Scopes};
use crate::decode::touches::touches;
use crate::decode::{Decode, FunctionBuilder, Reject};
use crate::isa;
use crate::load_error::{LoadError, Unsupported};
use crate::machine::code::{FunctionCode, Instr, Op, Passed};
use crate::machine::module::{KernelInfo, Module, ParamInfo, Symbol, size_align};
use crate::machine::regs::{FrameSize, Pred};
use crate::syntax::{Type, ast};
use std::collections::HashMap;

/// The reasons why a function cannot run.
#[derive(Debug, Clone, Default)]
pub(super) struct Obstacles {
    /// Its parameters are wrong: it was not decoded.
    pub(super) signature: Option<LoadError>,
    /// Instructions that are not modelled.
    pub(super) unsupported: Vec<Unsupported>,
    /// The first error other than something unsupported.
    pub(super) error: Option<LoadError>,
}

impl Obstacles {
    /// Joins the obstacles of several functions: instructions that are not modelled, or an error.
    pub(super) fn of_all(all: Vec<Self>) -> Result<Vec<Unsupported>, LoadError> {
        if let Some(error) = all.iter().find_map(|one| one.signature.clone()) {
            return Err(error);
        }
        let mut unsupported = Vec::new();
        let mut error = None;
        for one in all {
            unsupported.extend(one.unsupported);
            error = error.or(one.error);
        }
        match error {
            Some(error) if unsupported.is_empty() => Err(error),
            _ => Ok(unsupported),
        }
    }
}

/// Decodes all functions; what keeps each from running, in the order of their indices.
pub(super) fn decode_all(
    module: &mut Module,
    tree: &ast::Module,
) -> Result<Vec<Obstacles>, LoadError> {
    let functions = || {
        tree.items.iter().filter_map(|item| match item {
            ast::Item::Function(function) => Some(function),
            _ => None,
        })
    };
    // A function may be declared before it is defined: one index a name.
    let mut indices: HashMap<&str, usize> = HashMap::new();
    let mut chosen: Vec<&ast::Function> = Vec::new();
    for function in functions() {
        match indices.get(function.name.as_str()) {
            Some(&index) if chosen[index].body.is_none() => chosen[index] = function,
            Some(_) => {}
            None => {
                indices.insert(&function.name, chosen.len());
                chosen.push(function);
            }
        }
    }
    for (&name, &index) in &indices {
        module.symbols.insert(name.to_owned(), Symbol::Function(index));
    }
    for item in &tree.items {
        if let ast::Item::Alias { name, target, pos } = item {
            let Some(&index) = indices.get(target.as_str()) else {
                return Err(LoadError::UnknownSymbol {
                    line: pos.line,
                    instruction: module.source_line(pos.line).to_owned(),
                    name: target.clone(),
                });
            };
            module.symbols.insert(name.clone(), Symbol::Function(index));
        }
    }
    let mut all = Vec::with_capacity(chosen.len());
    for function in &chosen {
        let signature = match formals(function) {
            Ok(formals) => {
                module.add(function, formals);
                None
            }
            Err(error) => {
                module.add(function, Formals::default());
                Some(error)
            }
        };
        all.push(Obstacles { signature, ..Obstacles::default() });
    }
    for (index, (function, obstacles)) in chosen.iter().zip(&mut all).enumerate() {
        let start = module.code.len();
        module.functions[index].start = start;
        let (Some(body), Ok(Formals { scopes, .. })) = (&function.body, formals(function)) else {
            continue;
        };
        count_decoded();
        let mut builder = FunctionBuilder::new(scopes, function.is_entry);
        module.sources.function(function.pos.line);
        directives(module, &mut builder, function);
        block(module, &mut builder, body);
        // The end of a body returns (PTX ISA 9.7.12 `ret`).
        module.code.push(Instr {
            op: Op::Return,
            guard: Pred::Const(true),
            line: body.end.line,
            family: Family::Control,
        });
        resolve(module, &builder.scopes.labels, start);
        let code = &mut module.functions[index];
        code.frame = builder.scopes.frame;
        code.local = builder.scopes.local.next_multiple_of(16);
        code.calls = builder.calls;
        code.calls_any = builder.calls_any;
        code.shared = builder.shared;
        code.global_sync = builder.global_sync;
        code.takes_over = builder.takes_over;
        obstacles.unsupported = builder.unsupported;
        obstacles.error = builder.error;
    }
    Ok(all)
}

/// The parameters and results of a function.
#[derive(Debug, Default)]
struct Formals {
    /// The scope in which they are.
    scopes: Scopes,
    /// A kernel's properties that a launch needs.
    info: Option<KernelInfo>,
    params: Vec<Passed>,
    returns: Vec<Passed>,
}

impl Module {
    /// Registers a function, without its body.
    fn add(&mut self, function: &ast::Function, formals: Formals) {
        let index = self.functions.len();
        self.kernels.extend(formals.info.map(|info| KernelInfo { function: index, ..info }));
        self.functions.push(FunctionCode {
            name: function.name.clone(),
            defined: function.body.is_some(),
            start: 0,
            frame: FrameSize::default(),
            local: 0,
            params: formals.params.into(),
            returns: formals.returns.into(),
            calls: Vec::new(),
            calls_any: false,
            shared: Vec::new(),
            global_sync: false,
            takes_over: false,
        });
    }
}

/// Lays out the parameters in a scope.
fn formals(function: &ast::Function) -> Result<Formals, LoadError> {
    let mut scopes = Scopes::default();
    scopes.push();
    let mut params = Vec::new();
    let mut returns = Vec::new();
    let mut kernel = None;
    if function.is_entry {
        let mut info = KernelInfo {
            name: function.name.clone(),
            reqntid: None,
            maxntid: None,
            cluster: None,
            maxnreg: None,
            min_ctas_per_sm: None,
            param_bytes: 0,
            params: Vec::new(),
            static_shared: 0,
            dynamic_shared: false,
            function: 0,
        };
        for param in &function.params {
            let (size, align) = param_size(param)?;
            let offset = info.param_bytes.next_multiple_of(align);
            scopes.declare(&param.name, Name::Param { offset });
            info.params.push(ParamInfo {
                name: param.name.clone(),
                offset,
                size,
                align,
                ty: type_name(param),
                pointer: param.ptr.is_some(),
            });
            info.param_bytes = offset + size;
            if info.param_bytes > MOST_PARAMS {
                return Err(too_many_params(param, info.param_bytes));
            }
        }
        for directive in &function.directives {
            let extent = || {
                let at = |d: usize| directive.args.get(d).map_or(1, |&v| v as u32);
                Some([at(0), at(1), at(2)])
            };
            match directive.name.as_str() {
                "reqntid" => info.reqntid = extent(),
                "maxntid" => info.maxntid = extent(),
                "reqnctapercluster" => info.cluster = extent(),
                "maxnreg" => info.maxnreg = directive.args.first().map(|&v| v as u32),
                "minnctapersm" => {
                    info.min_ctas_per_sm = directive.args.first().map(|&v| v as u32);
                }
                _ => {}
            }
        }
        kernel = Some(info);
    } else {
        for param in &function.returns {
            returns.push(formal(&mut scopes, param)?);
        }
        for param in &function.params {
            params.push(formal(&mut scopes, param)?);
        }
    }
    Ok(Formals { scopes, info: kernel, params, returns })
}

/// A body is decoded: tests bound how many are.
fn count_decoded() {
    #[cfg(test)]
    tests::DECODED.with(|count| count.set(count.get() + 1));
}

/// Type and dimensions as declared.
fn type_name(param: &ast::Variable) -> String {
    let mut text = match param.vector {
        1 => param.ty.clone(),
        elements => format!("v{elements}.{}", param.ty),
    };
    for dim in &param.dims {
        text += &dim.map_or("[]".to_owned(), |dim| format!("[{dim}]"));
    }
    text
}

fn param_size(param: &ast::Variable) -> Result<(u32, u32), LoadError> {
    let (size, align) = size_align(param)?;
    match u32::try_from(size) {
        Ok(size) if size <= MOST_PARAMS => Ok((size, align)),
        _ => Err(too_many_params(param, size)),
    }
}

/// CUDA C++ Programming Guide, technical specifications: bytes of kernel
/// parameters.
const MOST_PARAMS: u32 = 32764;

fn too_many_params(param: &ast::Variable, actual: impl ToString) -> LoadError {
    let required = format!("at most {MOST_PARAMS} bytes of parameters");
    LoadError::declaration(param, "size", &required, actual.to_string())
}

/// A parameter or result of a device function.
fn formal(scopes: &mut Scopes, param: &ast::Variable) -> Result<Passed, LoadError> {
    let bad = || {
        let required = "a register type other than .pred, or a .param of known size";
        LoadError::declaration(param, "type", required, param.ty.clone())
    };
    if param.space == ast::Space::Reg {
        let ty = Type::parse(&param.ty).ok_or_else(bad)?;
        return scopes.declare_formal(&param.name, ty).passed().ok_or_else(bad);
    }
    let (bytes, align) = param_size(param)?;
    let offset = scopes.reserve(bytes, align).ok_or_else(bad)?;
    scopes.declare(&param.name, Name::Frame { offset, bytes });
    Ok(Passed::Frame { offset, bytes })
}

/// Refuses the directives that the module's target lacks.
fn directives(module: &Module, builder: &mut FunctionBuilder, function: &ast::Function) {
    let Some(language) = module.language else { return };
    for directive in &function.directives {
        if let Some(why) = language.lacks_directive(&directive.name) {
            let line = directive.pos.line;
            let instruction = module.source_line(line).to_owned();
            builder.unsupported.push(Unsupported { line, instruction, why });
        }
    }
}

fn block(module: &mut Module, function: &mut FunctionBuilder, body: &ast::Block) {
    function.scopes.push();
    // Labels and target lists may be used before they stand.
    for statement in &body.statements {
        match statement {
            ast::Statement::Label { name, .. } => function.scopes.declare_label(name),
            ast::Statement::BranchTargets { name, targets, .. } => {
                function.scopes.declare_targets(name, targets.clone());
            }
            ast::Statement::CallTargets { name, targets, .. } => {
                function.scopes.declare_prototype(name, Some(targets.clone()));
            }
            ast::Statement::CallPrototype { name, .. } => {
                function.scopes.declare_prototype(name, None);
            }
            _ => {}
        }
    }
    for statement in &body.statements {
        match statement {
            ast::Statement::Registers(decl) => registers(module, function, decl),
            ast::Statement::Variable(variable) => {
                if let Err(error) = local_variable(module, function, variable) {
                    function.error.get_or_insert(error);
                }
            }
            ast::Statement::Label { name, .. } => {
                if let Some(id) = function.scopes.find_label(name) {
                    function.scopes.labels[id] = Some(module.code.len());
                }
            }
            ast::Statement::Instruction(instruction) => one(module, function, instruction),
            ast::Statement::Block(inner) => block(module, function, inner),
            ast::Statement::Location(location) => module.sources.at(location),
            ast::Statement::Directive(_)
            | ast::Statement::BranchTargets { .. }
            | ast::Statement::CallTargets { .. }
            | ast::Statement::CallPrototype { .. } => {}
        }
    }
    function.scopes.pop();
}

fn registers(module: &Module, function: &mut FunctionBuilder, decl: &ast::RegDecl) {
    let Some(ty) = Type::parse(&decl.ty) else {
        function.unsupported.push(Unsupported {
            line: decl.pos.line,
            instruction: module.source_line(decl.pos.line).to_owned(),
            why: format!("register type .{}", decl.ty),
        });
        return;
    };
    for (name, count) in &decl.names {
        function.scopes.declare_register(name, *count, ty, decl.vector);
    }
}

/// CUDA C++ Programming Guide, technical specifications: bytes of local memory
/// of a thread.
const MOST_LOCAL: u32 = 512 << 10;

fn local_variable(
    module: &mut Module,
    function: &mut FunctionBuilder,
    variable: &ast::Variable,
) -> Result<(), LoadError> {
    let what = match variable.space {
        ast::Space::Local | ast::Space::Param => {
            let (size, align) = size_align(variable)?;
            let too_large = || {
                let required = "at most 512 KiB of local memory";
                LoadError::declaration(variable, "size", required, size.to_string())
            };
            let bytes = u32::try_from(size).map_err(|_| too_large())?;
            let offset = function.scopes.reserve(bytes, align).ok_or_else(too_large)?;
            // The whole frame counts, not only this variable.
            if function.scopes.local > MOST_LOCAL {
                return Err(too_large());
            }
            Name::Frame { offset, bytes }
        }
        _ => Name::Module(module.declare(variable)?),
    };
    function.scopes.declare(&variable.name, what);
    Ok(())
}

/// Whether an instruction loads elements of 8 bytes, as the copy of a structure does.
fn loads_words(instruction: &ast::Instruction) -> bool {
    let ty = instruction.modifiers.last().and_then(|name| Type::parse(name));
    instruction.opcode == "ld" && ty.is_some_and(|ty| ty.bits() == 64)
}

/// Decodes one instruction. One that is refused leaves a place holder, so that
/// the rest of the module is looked at too.
fn one(module: &mut Module, function: &mut FunctionBuilder, instruction: &ast::Instruction) {
    let line = instruction.pos.line;
    let mut decode = Decode::new(module, function, instruction);
    let result = decode.guard().and_then(|guard| {
        let (family, op) = isa::decode(&mut decode)?;
        decode.finish()?;
        Ok((guard, family, op))
    });
    match result {
        Ok((guard, family, op)) => {
            if module.watched {
                let touches = touches(&mut function.scopes, instruction);
                module.touches.resize_with(module.code.len(), Default::default);
                module.touches.push(touches);
            }
            if loads_words(instruction) {
                module.words.insert(module.code.len());
            }
            module.written.push(module.code.len());
            module.code.push(Instr { op, guard, line, family });
        }
        Err(reject) => {
            let instruction = module.source_line(line).to_owned();
            match reject {
                Reject::Unsupported(why) => {
                    function.unsupported.push(Unsupported { line, instruction, why })
                }
                Reject::UnknownSymbol(name) => {
                    function.error.get_or_insert(LoadError::UnknownSymbol {
                        line,
                        instruction,
                        name,
                    });
                }
                Reject::BadOperand(why) => {
                    function.error.get_or_insert(LoadError::BadOperand { line, instruction, why });
                }
            }
        }
    }
}

/// Turns label numbers into instruction indices. Labels are looked up when the
/// branch is decoded, so every number is a label that was passed.
fn resolve(module: &mut Module, labels: &[Option<usize>], start: usize) {
    let place = |label: usize| labels.get(label).copied().flatten().unwrap_or(start);
    for instr in &mut module.code[start..] {
        match &mut instr.op {
            Op::Branch(target) => *target = place(*target),
            Op::BranchIndex { targets, .. } => {
                for target in targets {
                    *target = place(*target);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    thread_local! {
        /// Bodies that this thread has decoded.
        pub(in crate::load) static DECODED: Cell<usize> = const { Cell::new(0) };
    }
}
