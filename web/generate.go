package web

//go:generate npm run --silent generate
