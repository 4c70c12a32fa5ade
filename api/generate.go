package api

//go:generate go test ../manager -run ^TestOpenAPIDocument$ -update
