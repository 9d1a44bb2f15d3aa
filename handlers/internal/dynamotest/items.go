package dynamotest

import (
	"context"
	"sort"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"
)

// Item is an item by its attributes' names.
type Item = map[string]types.AttributeValue

// Items returns all items of a table.
func (s *Server) Items(table string) []Item {
	s.t.Helper()
	var all []Item
	pages := dynamodb.NewScanPaginator(s.client, &dynamodb.ScanInput{TableName: aws.String(table), ConsistentRead: aws.Bool(true)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(context.Background())
		require.NoError(s.t, err)
		all = append(all, page.Items...)
	}
	return all
}

// Put writes an item past all handlers.
func (s *Server) Put(table string, item Item) {
	s.t.Helper()
	_, err := s.client.PutItem(context.Background(), &dynamodb.PutItemInput{TableName: aws.String(table), Item: item})
	require.NoError(s.t, err)
}

// Tables returns the names of the tables that begin with prefix.
func (s *Server) Tables(prefix string) []string {
	s.t.Helper()
	var names []string
	pages := dynamodb.NewListTablesPaginator(s.client, &dynamodb.ListTablesInput{})
	for pages.HasMorePages() {
		page, err := pages.NextPage(context.Background())
		require.NoError(s.t, err)
		for _, name := range page.TableNames {
			if strings.HasPrefix(name, prefix) {
				names = append(names, name)
			}
		}
	}
	sort.Strings(names)
	return names
}

// Clear removes all items of the tables that begin with prefix.
func (s *Server) Clear(prefix string) {
	s.t.Helper()
	for _, table := range s.Tables(prefix) {
		out, err := s.client.DescribeTable(context.Background(), &dynamodb.DescribeTableInput{TableName: aws.String(table)})
		require.NoError(s.t, err)
		for _, item := range s.Items(table) {
			key := Item{}
			for _, part := range out.Table.KeySchema {
				key[*part.AttributeName] = item[*part.AttributeName]
			}
			_, err := s.client.DeleteItem(context.Background(), &dynamodb.DeleteItemInput{TableName: aws.String(table), Key: key})
			require.NoError(s.t, err)
		}
	}
}

// Client is one that no disturbance reaches.
func (s *Server) Client() *dynamodb.Client { return s.client }

// Text is an attribute's text or number, "" where there is none.
func Text(item Item, name string) string {
	switch v := item[name].(type) {
	case *types.AttributeValueMemberS:
		return v.Value
	case *types.AttributeValueMemberN:
		return v.Value
	}
	return ""
}
