// Package strict decodes JSON as the API promises it: unknown and repeated fields, null and numbers that do not fit are refused, each with
// its path, and the memory that a value takes is bounded before it is decoded. It knows no route and no object.
package strict
