-- +goose Up
CREATE TABLE totals (
	customer text COLLATE "C" PRIMARY KEY,
	cents    bigint NOT NULL
);
