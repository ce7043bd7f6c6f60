//! A component that is made of the names of its imports and exports.

use wasm_encoder::{
    Alias, CanonicalFunctionSection, CodeSection, Component, ComponentAliasSection, ComponentExportKind,
    ComponentExportSection, ComponentImportSection, ComponentInstanceSection, ComponentTypeRef,
    ComponentTypeSection, ComponentValType, ExportKind, ExportSection, Function, FunctionSection,
    InstanceSection, InstanceType, Module, ModuleArg, ModuleSection, TypeSection,
};

/// Name of the only function of the core module.
const CORE_FUNCTION: &str = "f";

/// Imported and exported instances, whose functions have neither parameters nor results.
pub(super) struct Names {
    imports: Vec<Interface>,
    exports: Vec<Interface>,
}

struct Interface {
    name: String,
    functions: Vec<String>,
}

impl Names {
    /// Parses lines `import NAME FUNCTION…` and `export NAME FUNCTION…`; ignores others.
    pub(super) fn parse(text: &str) -> Self {
        let mut names = Self { imports: Vec::new(), exports: Vec::new() };
        for line in text.split('\n') {
            let mut words = line.split(' ');
            let interfaces = match words.next() {
                Some("import") => &mut names.imports,
                Some("export") => &mut names.exports,
                Some(_) | None => continue,
            };
            let name = words.next().unwrap_or_default().to_owned();
            interfaces.push(Interface { name, functions: words.map(str::to_owned).collect() });
        }
        names
    }

    /// The names of the imports.
    pub(super) fn imports(&self) -> Vec<String> {
        self.imports.iter().map(|interface| interface.name.clone()).collect()
    }

    /// The names of the exports.
    pub(super) fn exports(&self) -> Vec<String> {
        self.exports.iter().map(|interface| interface.name.clone()).collect()
    }

    /// Encodes the component. It is invalid if a name is.
    pub(super) fn component(&self) -> Vec<u8> {
        let mut component = Component::new();
        add_function(&mut component);
        self.add_imports(&mut component);
        self.add_exports(&mut component);
        component.finish()
    }

    fn add_imports(&self, component: &mut Component) {
        // The function's type is type 0.
        for (interface, type_index) in self.imports.iter().zip(1..) {
            let mut instance = InstanceType::new();
            instance.ty().function().params(Vec::<(&str, ComponentValType)>::new()).result(None);
            for function in &interface.functions {
                instance.export(function.as_str(), ComponentTypeRef::Func(0));
            }
            let mut types = ComponentTypeSection::new();
            types.instance(&instance);
            component.section(&types);
            let mut imports = ComponentImportSection::new();
            imports.import(interface.name.as_str(), ComponentTypeRef::Instance(type_index));
            component.section(&imports);
        }
    }

    fn add_exports(&self, component: &mut Component) {
        let mut instances = ComponentInstanceSection::new();
        for interface in &self.exports {
            let items = interface.functions.iter().map(|name| (name.as_str(), ComponentExportKind::Func, 0));
            instances.export_items(items.collect::<Vec<_>>());
        }
        component.section(&instances);
        let mut exports = ComponentExportSection::new();
        // The imported instances come first.
        for (interface, index) in
            self.exports.iter().zip(u32::try_from(self.imports.len()).unwrap_or_default()..)
        {
            exports.export(interface.name.as_str(), ComponentExportKind::Instance, index, None);
        }
        component.section(&exports);
    }
}

/// Adds function 0, of type 0: no parameters, no result, no effect.
fn add_function(component: &mut Component) {
    let mut module = Module::new();
    let mut types = TypeSection::new();
    types.ty().function([], []);
    let mut functions = FunctionSection::new();
    functions.function(0);
    let mut exports = ExportSection::new();
    exports.export(CORE_FUNCTION, ExportKind::Func, 0);
    let mut code = CodeSection::new();
    let mut function = Function::new([]);
    function.instructions().end();
    code.function(&function);
    module.section(&types).section(&functions).section(&exports).section(&code);
    component.section(&ModuleSection(&module));

    let mut instances = InstanceSection::new();
    instances.instantiate(0, Vec::<(&str, ModuleArg)>::new());
    component.section(&instances);
    let mut aliases = ComponentAliasSection::new();
    aliases.alias(Alias::CoreInstanceExport { instance: 0, kind: ExportKind::Func, name: CORE_FUNCTION });
    component.section(&aliases);
    let mut types = ComponentTypeSection::new();
    types.function().params(Vec::<(&str, ComponentValType)>::new()).result(None);
    component.section(&types);
    let mut functions = CanonicalFunctionSection::new();
    functions.lift(0, 0, []);
    component.section(&functions);
}
