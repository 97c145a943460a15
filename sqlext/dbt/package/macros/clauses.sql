{#- Parts of statements. -#}

{#- Return a model's table properties. -#}
{% macro _properties() %}
  {%- set properties = {} -%}
  {%- for key, value in (config.get('tblproperties') or {}).items() -%}
    {%- do properties.update({key: sqlext._plain(value)}) -%}
  {%- endfor -%}
  {% do return(properties) %}
{% endmacro %}


{#- Return the table properties of a model that is a flow or a job; `flush_interval` is an abbreviation for one of them. -#}
{% macro _flow_properties() %}
  {%- set properties = sqlext._properties() -%}
  {%- if config.get('flush_interval') is not none -%}
    {%- do properties.update({'execution.flush.max-interval': config.get('flush_interval') | string}) -%}
  {%- endif -%}
  {% do return(properties) %}
{% endmacro %}


{#- Return the clauses between a table's name and its properties; if they change, the table has to be recreated. -#}
{% macro _table_clauses() %}
  {%- set clauses = [] -%}
  {%- set labels = {'partition_by': 'partitioned by', 'clustered_by': 'cluster by', 'liquid_clustered_by': 'cluster by'} -%}
  {%- for key, label in labels.items() if config.get(key) -%}
    {%- set columns = config.get(key) -%}
    {%- do clauses.append(label ~ ' (' ~ (columns if columns is string else columns | join(', ')) ~ ')') -%}
  {%- endfor -%}
  {%- if config.get('location_root') is not none -%}
    {%- do clauses.append('location ' ~ sqlext._text(config.get('location_root') ~ '/' ~ model['alias'])) -%}
  {%- endif -%}
  {% do return(clauses | join('\n')) %}
{% endmacro %}


{#- Return the clauses of a table that is kept up to date, after the column list with the constraints of `expectations`. -#}
{% macro _checked_clauses() %}
  {% do return((sqlext._constraints() ~ '\n' ~ sqlext._table_clauses()).strip()) %}
{% endmacro %}


{% macro _constraints() %}
  {%- set found = [] -%}
  {%- for name, given in (config.get('expectations') or {}).items() -%}
    {%- set each = {'expect': given} if given is string else given -%}
    {%- if not each.get('expect') or each.keys() - ['expect', 'on_violation'] -%}
      {% do exceptions.raise_compiler_error("The expectation `" ~ name ~ "` is " ~ given ~ ". Give it a condition, or `expect`, and `on_violation`: `drop row`, `fail update` or `quarantine into table`.") %}
    {%- endif -%}
    {%- set what = ' on violation ' ~ each.on_violation if each.get('on_violation') else '' -%}
    {%- do found.append('constraint ' ~ '`' ~ name | replace('`', '``') ~ '`' ~ ' expect (' ~ each.expect ~ ')' ~ what) -%}
  {%- endfor -%}
  {% do return('(' ~ found | join(', ') ~ ')' if found else '') %}
{% endmacro %}


{% macro _tblproperties(properties) %}
  {% do return('tblproperties (' ~ sqlext._pairs(properties) ~ ')' if properties else '') %}
{% endmacro %}


{% macro _pairs(properties) %}
  {%- set pairs = [] -%}
  {%- for key, value in properties.items() -%}
    {%- do pairs.append(sqlext._text(key) ~ ' = ' ~ sqlext._text(value)) -%}
  {%- endfor -%}
  {% do return(pairs | join(', ')) %}
{% endmacro %}


{#- Return a value as the text of a property; YAML's booleans arrive as Python's. -#}
{% macro _plain(value) %}
  {% do return(value | string | lower if value is boolean else value | string) %}
{% endmacro %}


{% macro _text(value) %}
  {% do return("'" ~ value | string | replace("\\", "\\\\") | replace("'", "\\'") ~ "'") %}
{% endmacro %}


{#- Return whether a key is an option of sqlext, by its namespace; sqlext itself refuses unknown options. -#}
{% macro _is_option(key) %}
  {% do return(modules.re.match('((execution|state[.]backend|backlog|job-event|operator-coordinator-snapshot)[.]|schema-evolution)', key | lower) is not none) %}
{% endmacro %}


{% macro _flow_name(flow) %}
  {% do return(flow.full_name) %}
{% endmacro %}


{#- Return a fingerprint of a text, the same for two texts that differ only in comments and white space. -#}
{% macro _fingerprint(text) %}
  {%- set pattern = '(\'(?:[^\'\\\\]|\\\\.)*\'|"(?:[^"\\\\]|\\\\.)*"|`[^`]*`)|(?:\\s|--[^\\n]*|/\\*(?!\\+).*?\\*/)+' -%}
  {% do return(local_md5(modules.re.sub(pattern, '\\1 ', text, flags=modules.re.DOTALL) | trim)) %}
{% endmacro %}


{#- Return the rows of a statement as they are, without the types that dbt infers. -#}
{% macro _rows(sql) %}
  {%- call statement('sqlext_rows', fetch_result=True) -%} {{ sql }} {%- endcall -%}
  {% do return(load_result('sqlext_rows').data) %}
{% endmacro %}


{#- Return the rows of a statement, each as a dictionary by its columns. -#}
{% macro _dicts(sql) %}
  {%- call statement('sqlext_dicts', fetch_result=True) -%} {{ sql }} {%- endcall -%}
  {%- set answer = load_result('sqlext_dicts') -%}
  {%- set found = [] -%}
  {%- for row in answer.data -%}
    {%- do found.append(dict(zip(answer.table.column_names, row))) -%}
  {%- endfor -%}
  {% do return(found) %}
{% endmacro %}


{% macro _properties_of(relation) %}
  {%- set properties = {} -%}
  {%- for row in sqlext._rows('show tblproperties ' ~ relation) -%}
    {%- do properties.update({row[0]: row[1]}) -%}
  {%- endfor -%}
  {% do return(properties) %}
{% endmacro %}


{#- Write the descriptions of columns to the table, if `persist_docs` asks for it. -#}
{% macro _comment_columns(relation) %}
  {%- for statement in sqlext._column_comments(relation, {}) -%}
    {% do run_query(statement) %}
  {%- endfor -%}
{% endmacro %}


{#- Return the statements for that, without those for comments that are `there` already: comments by columns in lower case. -#}
{% macro _column_comments(relation, there) %}
  {%- set statements = [] -%}
  {%- if config.persist_column_docs() and model.columns -%}
    {%- for name, column in model.columns.items() if column.description and there.get(name | lower) != column.description -%}
      {%- do statements.append('alter table ' ~ relation ~ ' alter column ' ~ '`' ~ name | replace('`', '``') ~ '`' ~ ' comment ' ~ sqlext._text(column.description)) -%}
    {%- endfor -%}
  {%- endif -%}
  {% do return(statements) %}
{% endmacro %}


{#- Return the relation of a model's name, which may have a schema. -#}
{% macro _named(name) %}
  {%- set parts = name.split('.') -%}
  {% do return(api.Relation.create(schema=parts[0] if parts | length > 1 else target.schema, identifier=parts[-1])) %}
{% endmacro %}


{#- Drop what has a model's name and is of another kind. -#}
{% macro _drop(existing) %}
  {%- if not existing.is_view and sqlext.find_materialized_view(existing) is not none -%}
    {% do run_query('drop materialized view ' ~ existing) %}
    {% do adapter.cache_dropped(existing) %}
  {%- else -%}
    {% do adapter.drop_relation(existing) %}
  {%- endif -%}
{% endmacro %}
