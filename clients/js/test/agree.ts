// The implementation has what the declarations say, and no other names. Checked by tsc, never run.
import * as implementation from "../src/index.js";
import * as nodeImplementation from "../src/node.js";
import * as declared from "../types/index.js";
import * as nodeDeclared from "../types/node.js";

export const declarations: typeof declared = implementation;
export const nodeDeclarations: typeof nodeDeclared = nodeImplementation;

type Undeclared<A, B> = Exclude<keyof A, keyof B> extends never ? true : false;
export const allDeclared: Undeclared<typeof implementation, typeof declared> = true;
export const allNodeDeclared: Undeclared<typeof nodeImplementation, typeof nodeDeclared> = true;
