{#- Parts of statements. -#}

{#- Return a model's table properties; `flush_interval` is an abbreviation for one of them. -#}
{% macro _flow_properties() %}
  {%- set properties = {} -%}
  {%- for key, value in (config.get('tblproperties') or {}).items() -%}
    {%- do properties.update({key: sqlext._plain(value)}) -%}
  {%- endfor -%}
  {%- if config.get('flush_interval') is not none -%}
    {%- do properties.update({'execution.flush.max-interval': config.get('flush_interval') | string}) -%}
  {%- endif -%}
  {% do return(properties) %}
{% endmacro %}


{#- Return the clauses between a table's name and its properties; if they change, the table has to be recreated. -#}
{% macro _table_clauses() %}
  {%- set clauses = [] -%}
  {%- for label, key in (('partitioned by', 'partition_by'), ('cluster by', 'clustered_by')) if config.get(key) is not none -%}
    {%- set columns = config.get(key) -%}
    {%- do clauses.append(label ~ ' (' ~ (columns if columns is string else columns | join(', ')) ~ ')') -%}
  {%- endfor -%}
  {%- if config.get('location_root') is not none -%}
    {%- do clauses.append('location ' ~ sqlext._text(config.get('location_root') ~ '/' ~ model['alias'])) -%}
  {%- endif -%}
  {% do return(clauses | join('\n')) %}
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


{% macro _properties_of(relation) %}
  {%- set properties = {} -%}
  {%- for row in sqlext._rows('show tblproperties ' ~ relation) -%}
    {%- do properties.update({row[0]: row[1]}) -%}
  {%- endfor -%}
  {% do return(properties) %}
{% endmacro %}


{#- Write the descriptions of columns to the table, if `persist_docs` asks for it. -#}
{% macro _comment_columns(relation) %}
  {%- if config.persist_column_docs() and model.columns -%}
    {%- for name, column in model.columns.items() if column.description -%}
      {% do run_query('alter table ' ~ relation ~ ' alter column ' ~ adapter.quote(name) ~ ' comment ' ~ sqlext._text(column.description)) %}
    {%- endfor -%}
  {%- endif -%}
{% endmacro %}
