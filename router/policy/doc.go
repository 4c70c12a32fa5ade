// Package policy reads policies and chains, once for all who compile or place them: what a policy selects, where each of its directions is
// caught, which functions of its chain can be used, and why a policy is not ready. It is pure, and owns no rules: package router makes those
// of one host, package fabric those of many switches. Where the two differ for a reason, it is a parameter here: [Order], the number of
// [Ranks], the matches of an endpoint and whether matches name their family ([Direction.Matches]).
package policy
