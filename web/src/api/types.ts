// The API's nouns by short names. Everything comes from api/openapi.json.
import type { components } from "./schema";

type Schemas = components["schemas"];

export type Endpoint = Schemas["Endpoint"];
export type EndpointSpec = Schemas["EndpointSpec"];
export type PortSecurity = Schemas["PortSecurity"];
export type Func = Schemas["Function"];
export type FunctionSpec = Schemas["FunctionSpec"];
export type Chain = Schemas["Chain"];
export type Policy = Schemas["Policy"];
export type PolicySpec = Schemas["PolicySpec"];
export type PolicyPath = Schemas["PolicyPath"];
export type Host = Schemas["Host"];
export type Switch = Schemas["Switch"];
export type Event = Schemas["Event"];
export type Operation = Schemas["Operation"];
export type Condition = Schemas["Condition"];
export type Counters = Schemas["Counters"];
export type PortCounters = Schemas["PortCounters"];
export type Problem = Schemas["Problem"];
export type ProblemError = Schemas["ProblemError"];
export type Change = Schemas["Change"];
export type Document = Schemas["Document"];
export type ApplyResult = Schemas["ApplyResult"];
export type Trace = Schemas["Trace"];

/** What the one watch follows, by the name of the kind. */
export interface Kinds {
  endpoint: Endpoint;
  function: Func;
  chain: Chain;
  policy: Policy;
  host: Host;
  switch: Switch;
  event: Event;
}
export type Kind = keyof Kinds;

/** What all nouns have in common. */
export interface Meta {
  name: string;
  revision?: number;
  deleting?: string;
}
